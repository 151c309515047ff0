// A recorded layer: both passes as CUDA graphs, for autograd.
//
// in: tensors at the places that were recorded, an input that is copied to its place.  out: the result, which lies where
// the graph writes it; gradients in memory of their own. What may be asked when is described in _torch_graphs.py.
#pragma once

#include "look.h"
#include "places.h"
#include "python.h"

namespace devkernels {

class Replay final : public torch::CustomClassHolder {
 public:
  enum Refusal : int { OVERWRITTEN, MODIFIED };
  enum Slot : uint64_t { INPUT, GRADIENT, FIRST };  // of what comes in; then of the gradients that are made

  // `like`: an input as it comes, the result's gradient where it is read, the result, the input where it is read, then
  // the parameters, then the gradients of the input and of the parameters, where there are any, as the graph makes them.
  Replay(Words words, const std::vector<at::Tensor>& like, PyObject* owner, PyObject* refuse)
      : owner_(owner), refuse_(refuse) {
    if (like.size() < 5 || like.size() % 2 == 0) throw std::invalid_argument("unknown tensors to be like");
    const size_t parameters = (like.size() - 5) / 2;
    x_ = Look(like[0]), dy_ = like[1], y_ = like[2], held_ = like[3];
    look_of_dy_ = Look(dy_);
    for (size_t i = 0; i < parameters; i++) parameters_.emplace_back(Look(like[4 + i]), pointer(like[4 + i]));
    for (size_t i = 4 + parameters; i < like.size(); i++) gradients_.push_back(like[i].defined() ? Look(like[i]) : Look());
    words.slots = FIRST + gradients_.size();
    forward_ = read_launches(words);
    backward_ = read_launches(words);
    words.end();
  }

  bool fits(const at::Tensor& x, at::TensorList parameters) {
    if (!x_.of(x) || parameters.size() != parameters_.size() || lacks(0, x)) return false;
    for (size_t i = 0; i < parameters_.size(); i++) {
      if (!parameters_[i].first.of(parameters[i]) || pointer(parameters[i]) != parameters_[i].second) return false;
      if (lacks(1 + i, parameters[i])) return false;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.expired();  // the last forward pass has gone back, or will not
  }

  // The turn of this forward pass; `pass` lives for as long as it may still go back.
  int64_t forward(const at::Tensor& x, const std::shared_ptr<int>& pass) {
    std::vector<uint64_t> frame(FIRST + gradients_.size());
    frame[INPUT] = pointer(x);
    launch(forward_, frame);
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_ = pass;
    return ++turn_;
  }

  variable_list backward(const at::Tensor& dy, int64_t turn) {
    if (!take(turn)) refuse(OVERWRITTEN);
    const bool there = look_of_dy_.of(dy);
    if (!there) dy_.copy_(dy);
    std::vector<uint64_t> frame(FIRST + gradients_.size());
    frame[GRADIENT] = pointer(there ? dy : dy_);
    variable_list made(gradients_.size());
    for (size_t i = 0; i < made.size(); i++) {
      if (!gradients_[i].known()) continue;
      made[i] = gradients_[i].make();
      frame[FIRST + i] = pointer(made[i]);
    }
    launch(backward_, frame);
    return made;
  }

  [[noreturn]] void refuse(Refusal reason) const {
    const Interpreter interpreter;
    Py_XDECREF(PyObject_CallFunction(refuse_.get(), "i", int(reason)));
    pass_on();
  }

  at::Tensor result() const { return y_.variable_data(); }
  const at::Tensor& held() const { return held_; }

 private:
  // Whether a gradient is wanted that the graph does not make.
  bool lacks(size_t i, const at::Tensor& x) const { return x.requires_grad() && !gradients_[i].known(); }

  // Whether it is this forward pass that goes back; the next one need not wait any more.
  bool take(int64_t turn) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (turn != turn_) return false;
    waiting_.reset();
    return true;
  }

  void launch(const Launches& launches, const std::vector<uint64_t>& frame) const {
    const at::Device device = x_.device();
    const int error = run_all(launches, 7, frame.data(), device.index(), current_stream(device));
    TORCH_CHECK(!error, "replaying a recorded layer failed with CUresult ", error);
  }

  Look x_, look_of_dy_;
  at::Tensor dy_, y_, held_;
  std::vector<std::pair<Look, uint64_t>> parameters_;
  std::vector<Look> gradients_;
  Launches forward_, backward_;
  Owned owner_, refuse_;
  std::mutex mutex_;
  int64_t turn_ = 0;
  std::weak_ptr<int> waiting_;
};

class Replayed : public torch::autograd::Function<Replayed> {
 public:
  // A forward pass that has run: what its backward pass may find changed.
  struct Pass final : torch::CustomClassHolder {
    c10::intrusive_ptr<Replay> replay;
    std::shared_ptr<int> alive = std::make_shared<int>(0);
    int64_t turn = 0;
    std::vector<std::pair<at::Tensor, int64_t>> watched;
  };

  // The result; nothing where the graphs do not fit.
  static std::optional<at::Tensor> run(const c10::intrusive_ptr<Replay>& replay, const at::Tensor& x,
                                       at::TensorList parameters) {
    if (!replay->fits(x, parameters)) return std::nullopt;
    auto pass = c10::make_intrusive<Pass>();
    pass->replay = replay;
    pass->turn = replay->forward(x, pass->alive);
    pass->watched.emplace_back(replay->held(), replay->held()._version());
    for (const at::Tensor& one : parameters) pass->watched.emplace_back(one, one._version());
    return apply(x, parameters, &pass);
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList parameters,
                            c10::intrusive_ptr<Pass>* pass) {
    context->saved_data["pass"] = c10::IValue::make_capsule(*pass);
    context->set_materialize_grads(false);
    return (*pass)->replay->result();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["pass"].toCapsule();
    const Pass& pass = static_cast<Pass&>(*capsule);
    const at::Tensor& dy = gradients[0];
    if (!dy.defined()) return variable_list(pass.watched.size() + 1);
    for (const auto& [one, version] : pass.watched)
      if (one._version() != version) pass.replay->refuse(Replay::MODIFIED);
    const bool again = at::GradMode::is_enabled();
    variable_list made;
    {
      at::AutoGradMode off(false);
      made = pass.replay->backward(dy, pass.turn);
    }
    if (again) refuse_to_be_differentiated(made);
    made.emplace_back();  // the pass
    return made;
  }
};

}  // namespace devkernels
