// Layers in training for torch: planned in Python, run in C++.
//
// in: plans as numbers and example tensors.  out: `Plan.forward(x, weight, bias)` and `Replay.forward(x, *parameters)`:
// results that autograd follows, or None where the call is not as planned. A Python function costs autograd some 25 us on
// each way; this costs 5.
#include "layer.h"
#include "replay.h"

namespace devkernels {
namespace {

template <class Held>
struct Object {
  PyObject_HEAD
  c10::intrusive_ptr<Held> held;
};

template <class Held>
const c10::intrusive_ptr<Held>& held_by(PyObject* self) { return reinterpret_cast<Object<Held>*>(self)->held; }

// The tensor of an argument (undefined for None); nothing where it is none, or a subclass, which means something else.
const at::Tensor* tensor(PyObject* object) {
  static const at::Tensor none;
  if (object == Py_None) return &none;
  return THPVariable_CheckExact(object) ? &THPVariable_Unpack(object) : nullptr;
}

bool has_tangent(const at::Tensor& x) { return x.defined() && x._fw_grad(0).defined(); }

// The tensors of a call; false where one of them asks for another road.
template <class Tensors>
bool tensors(PyObject* const* arguments, Py_ssize_t count, Tensors& found) {
  for (Py_ssize_t i = 0; i < count; i++) {
    const at::Tensor* one = tensor(arguments[i]);
    if (!one || has_tangent(*one)) return false;
    found.push_back(*one);
  }
  return true;
}

PyObject* wrapped(std::optional<at::Tensor> result) {
  if (!result) Py_RETURN_NONE;
  return THPVariable_Wrap(std::move(*result));
}

PyObject* plan_forward(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 3, "forward takes x, weight and bias or None");
  c10::SmallVector<at::Tensor, 3> found;
  if (!tensors(arguments, count, found)) Py_RETURN_NONE;
  return wrapped(Layer::run(held_by<Planned>(self), found[0], found[1], found[2]));
  END_HANDLE_TH_ERRORS
}

PyObject* replay_forward(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count > 0, "forward takes x and the parameters");
  c10::SmallVector<at::Tensor, 4> found;
  if (!tensors(arguments, count, found)) Py_RETURN_NONE;
  return wrapped(Replayed::run(held_by<Replay>(self), found[0], at::TensorList(found).slice(1)));
  END_HANDLE_TH_ERRORS
}

// Type(words, examples, owner, callable)
template <class Held>
PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *numbers, *examples, *owner, *callable;
  if (!PyArg_ParseTuple(arguments, "O!O!OO", &PyTuple_Type, &numbers, &PyTuple_Type, &examples, &owner, &callable))
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
  auto held = c10::make_intrusive<Held>(Words(std::move(words)), like, owner, callable);
  PyObject* self = type->tp_alloc(type, 0);
  if (self) new (&reinterpret_cast<Object<Held>*>(self)->held) c10::intrusive_ptr<Held>(std::move(held));
  return self;
  END_HANDLE_TH_ERRORS
}

template <class Held>
void destroy(PyObject* self) {
  reinterpret_cast<Object<Held>*>(self)->held.~intrusive_ptr();
  Py_TYPE(self)->tp_free(self);
}

PyObject* use_places(PyObject*, PyObject* arguments) {
  PyObject *ask, *enter;
  if (!PyArg_ParseTuple(arguments, "OO", &ask, &enter)) return nullptr;
  Py_XSETREF(all_places().ask, Py_NewRef(ask));
  Py_XSETREF(all_places().enter, Py_NewRef(enter));
  Py_RETURN_NONE;
}

PyObject* forget(PyObject*, PyObject*) {
  forget_places();
  Py_RETURN_NONE;
}

template <PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)>
PyMethodDef* forward_method(const char* text) {
  static PyMethodDef methods[] = {
      {"forward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, text},
      {nullptr, nullptr, 0, nullptr}};
  return methods;
}

template <class Held>
bool add_type(PyObject* module, PyTypeObject& type, const char* name, const char* text, PyMethodDef* methods) {
  type.tp_basicsize = sizeof(Object<Held>);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = text;
  type.tp_methods = methods;
  type.tp_new = make<Held>;
  type.tp_dealloc = destroy<Held>;
  return PyType_Ready(&type) == 0 && PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(&type)) == 0;
}

PyTypeObject plan_type = {PyVarObject_HEAD_INIT(nullptr, 0) "devkernels_native.Plan"};
PyTypeObject replay_type = {PyVarObject_HEAD_INIT(nullptr, 0) "devkernels_native.Replay"};

PyMethodDef module_methods[] = {
    {"use_places", use_places, METH_VARARGS,
     "use_places(ask, enter): ask(device, stream) -> (workspace, counters) or None; enter(device) makes its context current."},
    {"forget_places", forget, METH_NOARGS, "Ask again for the memory of every stream."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "devkernels_native", "Layers of torch in training.", -1, module_methods};

}  // namespace
}  // namespace devkernels

PyMODINIT_FUNC PyInit_devkernels_native() {
  using namespace devkernels;
  PyObject* const made = PyModule_Create(&definition);
  const char* text = "forward(x, weight, bias): the result, or None where the call is not as planned.";
  if (!made || !add_type<Planned>(made, plan_type, "Plan", "Plan(words, examples, owner, longer): a planned layer.",
                                  forward_method<plan_forward>(text)))
    return nullptr;
  text = "forward(x, *parameters): the result, or None where the graphs do not fit.";
  if (!add_type<Replay>(made, replay_type, "Replay", "Replay(words, examples, owner, refuse): a recorded layer.",
                        forward_method<replay_forward>(text)))
    return nullptr;
  return made;
}
