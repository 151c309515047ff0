// What tensors look like, and what launches need of them.
//
// in: tensors.  out: whether others look alike, new ones that do, pointers, the current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_ops.h>
#include <c10/core/Stream.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <vector>

namespace devkernels {

inline uint64_t pointer(const at::Tensor& x) {
  return x.defined() ? reinterpret_cast<uint64_t>(x.const_data_ptr()) : 0;
}

inline void* current_stream(at::Device device) {
  if (device.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

// Everything by which a tensor could ask for other kernels, or for another road than kernels.
class Look {
 public:
  Look() = default;
  explicit Look(const at::Tensor& like)
      : sizes_(like.sizes().vec()), strides_(like.strides().vec()), keys_(like.key_set()), type_(like.scalar_type()),
        device_(like.device()), known_(true) {}

  bool of(const at::Tensor& x) const {
    return known_ && x.defined() && x.key_set() == keys_ && x.sizes() == sizes_ && x.strides() == strides_ &&
           x.scalar_type() == type_ && x.device() == device_;
  }

  // A new contiguous tensor. Straight to the device's allocator: the dispatcher's other stops have no say in it, and
  // cost as much again.
  at::Tensor make() const {
    return at::_ops::empty_memory_format::redispatch(
        c10::DispatchKeySet(c10::computeDispatchKey(type_, c10::kStrided, device_)), c10::fromIntArrayRefSlow(sizes_),
        type_, c10::kStrided, device_, std::nullopt, std::nullopt);
  }

  bool known() const { return known_; }
  at::Device device() const { return device_; }
  bool is_float32() const { return type_ == at::kFloat; }

 private:
  std::vector<int64_t> sizes_, strides_;
  c10::DispatchKeySet keys_;
  at::ScalarType type_ = at::kFloat;
  at::Device device_ = at::kCPU;
  bool known_ = false;
};

}  // namespace devkernels
