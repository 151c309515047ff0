// The step of a layer in training, for autograd: planned in Python, run in C++.
//
// in: a plan as numbers and example tensors.  out: `Plan.forward(x, weight, bias)`, a result that autograd follows, or
// None where the call is not as planned. A Python function costs autograd some 25 us on each way; this costs 5.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_variable.h>

#include "plan.h"

namespace devkernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A plan, and what it needs of Python: the objects that own its handles, and the longer way back.
struct Planned final : torch::CustomClassHolder {
  Plan plan;
  PyObject *owner, *longer;

  Planned(Words words, const std::vector<at::Tensor>& like, PyObject* owner_, PyObject* longer_)
      : plan(std::move(words), like), owner(Py_NewRef(owner_)), longer(Py_NewRef(longer_)) {}
  ~Planned() override {
    if (!Py_IsInitialized()) return;
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(owner);
    Py_DECREF(longer);
    PyGILState_Release(state);
  }
};
using PlannedPtr = c10::intrusive_ptr<Planned>;

// What forward and the autograd function hand each other: the first has computed before autograd is asked.
struct Step {
  PlannedPtr planned;
  at::Tensor y, kept;
};

uint64_t needed_by(AutogradContext* context, size_t inputs) {
  uint64_t needed = 0;
  for (size_t i = 0; i < inputs; i++)
    if (context->needs_input_grad(i)) needed |= uint64_t{1} << i;
  return needed;
}

// longer(dy, x, weight, kept, needs) -> (dx, dw, db), for gradients that are not as planned.
variable_list by_the_longer_way(const Planned& planned, const at::Tensor& dy, const variable_list& saved, uint64_t needed) {
  const PyGILState_STATE state = PyGILState_Ensure();
  variable_list made(3);
  PyObject* const kept = saved[2].defined() ? THPVariable_Wrap(saved[2]) : Py_NewRef(Py_None);
  PyObject* told = PyObject_CallFunction(planned.longer, "NNNN(iii)", THPVariable_Wrap(dy), THPVariable_Wrap(saved[0]),
                                         THPVariable_Wrap(saved[1]), kept, int(needed & 1), int(needed >> 1 & 1),
                                         int(needed >> 2 & 1));
  if (!told) {
    python_error error;
    error.persist();
    PyGILState_Release(state);
    throw error;
  }
  for (Py_ssize_t i = 0; i < 3; i++) {
    PyObject* const one = PyTuple_GetItem(told, i);
    if (one && one != Py_None) made[i] = THPVariable_Unpack(one);
  }
  Py_DECREF(told);
  PyGILState_Release(state);
  return made;
}

class Layer : public torch::autograd::Function<Layer> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, Step* step) {
    const Plan& plan = step->planned->plan;
    context->save_for_backward({x, weight, plan.keeps() == Plan::RESULT ? step->y : step->kept});
    context->saved_data["planned"] = c10::IValue::make_capsule(step->planned);
    context->set_materialize_grads(false);
    return step->y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list made(4);
    const at::Tensor& dy = gradients[0];
    if (!dy.defined()) return made;
    const auto planned = context->saved_data["planned"].toCapsule();
    auto& about = static_cast<Planned&>(*planned);
    const variable_list saved = context->get_saved_variables();
    const uint64_t needed = needed_by(context, about.plan.has_bias() ? 3 : 2);
    const bool again = at::GradMode::is_enabled();  // create_graph=True: the result must refuse to be differentiated
    {
      at::AutoGradMode off(false);
      if (auto found = about.plan.backward(dy, saved[0], saved[1], saved[2], needed)) {
        if (needed & 1) made[0] = std::move(found->dx);
        if (needed & 2) made[1] = std::move(found->dw);
        if (needed & 4) made[2] = std::move(found->db);
      } else {
        variable_list other = by_the_longer_way(about, dy, saved, needed);
        std::move(other.begin(), other.end(), made.begin());
      }
    }
    if (again) {
      variable_list first(made.begin(), made.begin() + 3);
      for (at::Tensor& one : first)
        if (one.defined()) one.requires_grad_();
      torch::autograd::DelayedError refusal("devkernels' layers are differentiable once", 3);
      first = refusal.apply(std::move(first));
      std::move(first.begin(), first.end(), made.begin());
    }
    return made;
  }
};

// ---------------------------------------------------------------- Python

struct PlanObject {
  PyObject_HEAD
  PlannedPtr planned;
};

const at::Tensor* tensor(PyObject* object) {
  static const at::Tensor none;
  if (object == Py_None) return &none;
  return THPVariable_CheckExact(object) ? &THPVariable_Unpack(object) : nullptr;  // subclasses mean something else
}

bool has_tangent(const at::Tensor& x) { return x.defined() && x._fw_grad(0).defined(); }

PyObject* plan_forward(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 3, "forward takes x, weight and bias or None");
  const at::Tensor *x = tensor(arguments[0]), *weight = tensor(arguments[1]), *bias = tensor(arguments[2]);
  if (!x || !weight || !bias || has_tangent(*x) || has_tangent(*weight) || has_tangent(*bias)) Py_RETURN_NONE;
  Step step{reinterpret_cast<PlanObject*>(self)->planned, {}, {}};
  {
    at::AutoGradMode off(false);
    if (!step.planned->plan.forward(*x, *weight, *bias, step.y, step.kept)) Py_RETURN_NONE;
  }
  const auto given = bias->defined() ? std::optional<at::Tensor>(*bias) : std::nullopt;
  return THPVariable_Wrap(Layer::apply(*x, *weight, given, &step));
  END_HANDLE_TH_ERRORS
}

PyObject* plan_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *numbers, *examples, *owner, *longer;
  if (!PyArg_ParseTuple(arguments, "O!O!OO", &PyTuple_Type, &numbers, &PyTuple_Type, &examples, &owner, &longer))
    return nullptr;
  std::vector<uint64_t> words;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
    words.push_back(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(numbers, i)));
    if (PyErr_Occurred()) return nullptr;
  }
  std::vector<at::Tensor> like;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(examples); i++) {
    const at::Tensor* one = tensor(PyTuple_GET_ITEM(examples, i));
    TORCH_CHECK_TYPE(one, "an example is a tensor or None");
    like.push_back(*one);
  }
  auto planned = c10::make_intrusive<Planned>(Words(std::move(words)), like, owner, longer);
  PyObject* self = type->tp_alloc(type, 0);
  if (self) new (&reinterpret_cast<PlanObject*>(self)->planned) PlannedPtr(std::move(planned));
  return self;
  END_HANDLE_TH_ERRORS
}

void plan_delete(PyObject* self) {
  reinterpret_cast<PlanObject*>(self)->planned.~PlannedPtr();
  Py_TYPE(self)->tp_free(self);
}

PyObject* use_places(PyObject*, PyObject* ask) {
  Py_XSETREF(all_places().ask, Py_NewRef(ask));
  Py_RETURN_NONE;
}

PyObject* forget(PyObject*, PyObject*) {
  forget_places();
  Py_RETURN_NONE;
}

PyMethodDef plan_methods[] = {
    {"forward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(plan_forward)), METH_FASTCALL,
     "forward(x, weight, bias): the result, or None where the call is not as planned."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject plan_type = {PyVarObject_HEAD_INIT(nullptr, 0) "devkernels_native.Plan", sizeof(PlanObject)};

PyMethodDef module_methods[] = {
    {"use_places", use_places, METH_O, "use_places(ask): ask(device, stream) -> (workspace, counters) or None."},
    {"forget_places", forget, METH_NOARGS, "Ask again for the memory of every stream."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "devkernels_native", "Planned layers of torch.", -1, module_methods};

}  // namespace
}  // namespace devkernels

PyMODINIT_FUNC PyInit_devkernels_native() {
  using namespace devkernels;
  plan_type.tp_flags = Py_TPFLAGS_DEFAULT;
  plan_type.tp_doc = "Plan(words, examples, owner, longer): a layer's step in training.";
  plan_type.tp_methods = plan_methods;
  plan_type.tp_new = plan_new;
  plan_type.tp_dealloc = plan_delete;
  if (PyType_Ready(&plan_type) < 0) return nullptr;
  PyObject* const made = PyModule_Create(&definition);
  if (made && PyModule_AddObjectRef(made, "Plan", reinterpret_cast<PyObject*>(&plan_type)) < 0) return nullptr;
  return made;
}
