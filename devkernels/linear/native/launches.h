// Launches that were planned in Python: a product of cuBLASLt, or a kernel of this package.
//
// in: numbers from Python (handles, addresses of functions, sizes), then a frame of pointers.  out: work on a stream.
// Nothing here needs CUDA's headers: the functions come as addresses of what the process has loaded already.
#pragma once

#include <cstring>
#include <memory>
#include <mutex>

#include "parameter.h"

namespace devkernels {

class Launch {
 public:
  virtual ~Launch() = default;
  // 0, or the library's error, of which nothing has been launched.
  virtual int run(Frame frame, void* stream) = 0;
  virtual bool uses(uint64_t) const { return false; }  // asked by plans, of products and kernels
  virtual bool sums() const { return false; }  // whether its epilog writes a sum, asked for or not
  uint64_t needed = 7;                         // by which gradients: 1 the input's, 2 the weight's, 4 the bias's
};

// cublasLtMatmul with a descriptor of its own, which is written only where a pointer differs from the last call's.
class Product final : public Launch {
 public:
  explicit Product(Words& words) {
    matmul_ = words.as<Matmul>();
    set_ = words.as<Set>();
    for (void** one : {&handle_, &descriptor_, &alpha_, &beta_, &a_layout_, &b_layout_, &c_layout_, &d_layout_, &algorithm_})
      *one = words.as<void*>();
    workspace_ = words.next();
    for (uint64_t* one : {&a_, &b_, &out_, &side_, &aux_, &work_}) *one = words.slot();
  }

  int run(Frame frame, void* stream) override {
    const uint64_t side = pick(frame, side_), aux = pick(frame, aux_);
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (side || aux) lock.lock();  // no other thread may write the descriptor between this and the launch
    int error = write(BIAS_POINTER, side, &held_side_);
    if (!error) error = write(AUX_POINTER, aux, &held_aux_);
    if (error) return error;
    // cuBLASLt is column-major: its A is the caller's b.
    return matmul_(handle_, descriptor_, alpha_, address(frame, b_), b_layout_, address(frame, a_), a_layout_, beta_,
                   nullptr, c_layout_, address(frame, out_), d_layout_, algorithm_,
                   address(frame, work_), workspace_, stream);
  }

  bool uses(uint64_t slot) const override {
    for (const uint64_t one : {a_, b_, out_, side_, aux_, work_})
      if (slot == one) return true;
    return false;
  }
  bool sums() const override { return side_ != NONE; }

 private:
  using Matmul = int (*)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
                         void*, void*, void*, const void*, void*, size_t, void*);
  using Set = int (*)(void*, int, const void*, size_t);
  static constexpr int BIAS_POINTER = 8, AUX_POINTER = 11;  // cublasLtMatmulDescAttributes_t

  static void* address(Frame frame, uint64_t slot) { return reinterpret_cast<void*>(pick(frame, slot)); }

  int write(int attribute, uint64_t value, uint64_t* held) {
    if (!value || value == *held) return 0;
    *held = 0;
    const int error = set_(descriptor_, attribute, &value, sizeof value);
    if (!error) *held = value;
    return error;
  }

  Matmul matmul_;
  Set set_;
  void *handle_, *descriptor_, *alpha_, *beta_, *a_layout_, *b_layout_, *c_layout_, *d_layout_, *algorithm_;
  uint64_t workspace_, a_, b_, out_, side_, aux_, work_;
  uint64_t held_side_ = 0, held_aux_ = 0;
  std::mutex mutex_;
};

// cuLaunchKernelEx of one function with parameters laid out once.
class Kernel final : public Launch {
 public:
  explicit Kernel(Words& words) {
    launch_ = words.as<LaunchEx>();
    function_ = words.as<void*>();
    for (unsigned& one : dimensions_) one = static_cast<unsigned>(words.next());
    shared_bytes_ = static_cast<unsigned>(words.next());
    const uint64_t count = words.next();
    for (uint64_t i = 0; i < count; i++) parameters_.push_back(std::make_unique<Parameter>(words));
    for (auto& one : parameters_) places_.push_back(one->place());
  }

  int run(Frame frame, void* stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& one : parameters_)
      if (const int error = one->at(frame)) return error;
    Configuration about{};
    std::memcpy(about.dimensions, dimensions_, sizeof dimensions_);
    about.shared_bytes = shared_bytes_;
    about.stream = stream;
    return launch_(&about, function_, places_.data(), nullptr);
  }

  bool uses(uint64_t slot) const override {
    for (auto& one : parameters_)
      if (one->uses(slot)) return true;
    return false;
  }

 private:
  struct Configuration {  // CUlaunchConfig
    unsigned dimensions[6], shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
  };
  using LaunchEx = int (*)(const Configuration*, void*, void**, void**);

  LaunchEx launch_;
  void* function_;
  unsigned dimensions_[6], shared_bytes_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<void*> places_;
  std::mutex mutex_;
};

}  // namespace devkernels
