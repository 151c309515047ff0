// A planned layer: what its tensors look like, the launches of its forward and its backward pass.
//
// in: tensors.  out: the result and what is kept for the backward pass; gradients. Where anything is not as planned,
// both say so and do nothing: Python then takes the call.
#pragma once

#include <ATen/Context.h>

#include <array>
#include <optional>

#include "look.h"
#include "places.h"

namespace devkernels {

// The pointers of a call; the same names are in _torch_program.py.
enum Slot { X, WEIGHT, BIAS, Y, KEPT, DY, DZ, DX, DW, DB, WORK, COUNTERS, SLOTS };

struct Gradients {
  at::Tensor dx, dw, db;
};

class Plan {
 public:
  enum Keeps : uint64_t { NOTHING, RESULT, OWN };

  // `like`: tensors as x, weight, bias, y, kept, dy, dz, dx, dw, db are going to be; undefined ones do not occur.
  Plan(Words words, const std::vector<at::Tensor>& like) {
    if (like.size() != WORK) throw std::invalid_argument("a plan takes ten tensors to be like");
    for (size_t i = 0; i < like.size(); i++)
      if (like[i].defined()) looks_[i] = Look(like[i]);
    keeps_ = words.next();
    alignment_ = words.next();
    words.slots = SLOTS;
    if (keeps_ > OWN || !alignment_) throw std::invalid_argument("unknown words");
    forward_ = read_launches(words);
    backward_ = read_launches(words);
    words.end();
    if (looks_[X].is_float32()) precision_ = at::globalContext().float32MatmulPrecision();
  }

  // Result and what is kept (undefined if nothing is of its own); false where Python must take the call.
  bool forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, at::Tensor& y, at::Tensor& kept) {
    if (!fits(X, x) || !fits(WEIGHT, weight) || !fits(BIAS, bias) || !same_precision()) return false;
    void* stream = current_stream(device());
    Pointers frame{};
    if (!places(forward_, 7, stream, frame)) return false;
    y = looks_[Y].make();
    if (keeps_ == OWN) kept = looks_[KEPT].make();
    frame[X] = pointer(x), frame[WEIGHT] = pointer(weight), frame[BIAS] = pointer(bias);
    frame[Y] = pointer(y), frame[KEPT] = pointer(kept);
    return !run_all(forward_, 7, frame.data(), device().index(), stream);
  }

  // Gradients of those that are needed (1 the input's, 2 the weight's, 4 the bias's); nothing if Python must do it.
  std::optional<Gradients> backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& kept, uint64_t needed) {
    if (!fits(DY, dy) || !fits(X, x) || !fits(WEIGHT, weight) || !same_precision()) return std::nullopt;
    if (keeps_ != NOTHING && !fits(keeps_ == OWN ? KEPT : Y, kept)) return std::nullopt;
    if ((needed & 4) && !looks_[DB].known()) return std::nullopt;  // planned for a bias that needed none
    void* stream = current_stream(device());
    Pointers frame{};
    if (!places(backward_, needed, stream, frame)) return std::nullopt;
    Gradients made;
    at::Tensor dz;
    if (needed & 1) made.dx = looks_[DX].make();
    if (uses(backward_, DW, needed)) made.dw = looks_[DW].make();
    if ((needed & 4) || sums(needed)) made.db = looks_[DB].make();
    if (looks_[DZ].known()) dz = looks_[DZ].make();
    frame[DY] = pointer(dy), frame[X] = pointer(x), frame[WEIGHT] = pointer(weight), frame[KEPT] = pointer(kept);
    frame[DZ] = pointer(dz), frame[DX] = pointer(made.dx), frame[DW] = pointer(made.dw), frame[DB] = pointer(made.db);
    if (run_all(backward_, needed, frame.data(), device().index(), stream)) return std::nullopt;
    return made;
  }

  uint64_t keeps() const { return keeps_; }
  bool has_bias() const { return looks_[BIAS].known(); }

 private:
  using Pointers = std::array<uint64_t, SLOTS>;

  at::Device device() const { return looks_[X].device(); }

  bool fits(size_t slot, const at::Tensor& x) const {
    if (!looks_[slot].known()) return !x.defined();
    return looks_[slot].of(x) && pointer(x) % alignment_ == 0;
  }

  bool same_precision() const {
    return !looks_[X].is_float32() || at::globalContext().float32MatmulPrecision() == precision_;
  }

  static bool uses(const Launches& launches, Slot slot, uint64_t needed) {
    for (auto& one : launches)
      if ((one->needed & needed) && one->uses(slot)) return true;
    return false;
  }
  bool sums(uint64_t needed) const {  // our kernels leave a sum out for a null pointer, products do not
    for (auto& one : backward_)
      if ((one->needed & needed) && one->sums()) return true;
    return false;
  }

  bool places(const Launches& launches, uint64_t needed, void* stream, Pointers& frame) const {
    if (!uses(launches, WORK, needed) && !uses(launches, COUNTERS, needed)) return true;
    std::tie(frame[WORK], frame[COUNTERS]) = find_places(device().index(), stream);
    return frame[WORK] != 0;
  }

  std::array<Look, WORK> looks_;
  uint64_t keeps_, alignment_;
  Launches forward_, backward_;
  at::Float32MatmulPrecision precision_{};
};

}  // namespace devkernels
