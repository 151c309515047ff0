// A planned layer for autograd.
//
// in: tensors.  out: a result that autograd follows; gradients, those that are not as planned by way of Python.
#pragma once

#include "plan.h"
#include "python.h"

namespace devkernels {

// A plan, and what it needs of Python: the objects that own its handles, and the longer way back.
struct Planned final : torch::CustomClassHolder {
  Planned(Words words, const std::vector<at::Tensor>& like, PyObject* owner_, PyObject* longer_)
      : plan(std::move(words), like), owner(owner_), longer(longer_) {}

  Plan plan;
  Owned owner, longer;
};

// longer(dy, x, weight, kept, needs) -> (dx, dw, db).
inline variable_list by_the_longer_way(const Planned& planned, const at::Tensor& dy, const variable_list& saved,
                                       uint64_t needed) {
  const Interpreter interpreter;
  variable_list made(3);
  PyObject* const kept = saved[2].defined() ? THPVariable_Wrap(saved[2]) : Py_NewRef(Py_None);
  PyObject* const told = PyObject_CallFunction(planned.longer.get(), "NNNN(iii)", THPVariable_Wrap(dy),
                                               THPVariable_Wrap(saved[0]), THPVariable_Wrap(saved[1]), kept,
                                               int(needed & 1), int(needed >> 1 & 1), int(needed >> 2 & 1));
  if (!told) pass_on();
  for (Py_ssize_t i = 0; i < 3; i++) {
    PyObject* const one = PyTuple_GetItem(told, i);
    if (one && one != Py_None) made[i] = THPVariable_Unpack(one);
  }
  Py_DECREF(told);
  return made;
}

class Layer : public torch::autograd::Function<Layer> {
 public:
  // What the result was computed with before autograd was asked.
  struct Step {
    c10::intrusive_ptr<Planned> planned;
    at::Tensor y, kept;
  };

  // The result; nothing where the call is not as planned.
  static std::optional<at::Tensor> run(const c10::intrusive_ptr<Planned>& planned, const at::Tensor& x,
                                       const at::Tensor& weight, const at::Tensor& bias) {
    Step step{planned, {}, {}};
    {
      at::AutoGradMode off(false);
      if (!planned->plan.forward(x, weight, bias, step.y, step.kept)) return std::nullopt;
    }
    return apply(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, &step);
  }

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, Step* step) {
    const bool result = step->planned->plan.keeps() == Plan::RESULT;
    context->save_for_backward({x, weight, result ? step->y : step->kept});
    context->saved_data["planned"] = c10::IValue::make_capsule(step->planned);
    context->set_materialize_grads(false);
    return step->y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor& dy = gradients[0];
    if (!dy.defined()) return variable_list(4);
    const auto capsule = context->saved_data["planned"].toCapsule();
    Planned& planned = static_cast<Planned&>(*capsule);
    const variable_list saved = context->get_saved_variables();
    uint64_t needed = 0;
    for (size_t i = 0; i < (planned.plan.has_bias() ? 3 : 2); i++)
      if (context->needs_input_grad(i)) needed |= uint64_t{1} << i;
    const bool again = at::GradMode::is_enabled();
    variable_list made(3);
    {
      at::AutoGradMode off(false);
      if (auto found = planned.plan.backward(dy, saved[0], saved[1], saved[2], needed)) {
        if (needed & 1) made[0] = std::move(found->dx);
        if (needed & 2) made[1] = std::move(found->dw);
        if (needed & 4) made[2] = std::move(found->db);
      } else {
        made = by_the_longer_way(planned, dy, saved, needed);
      }
    }
    if (again) refuse_to_be_differentiated(made);
    made.emplace_back();  // the step
    return made;
  }
};

}  // namespace devkernels
