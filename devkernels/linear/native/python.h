// What the autograd functions need of the interpreter and of autograd.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_variable.h>

#include "interpreter.h"

namespace devkernels {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Python objects that belong to something of C++, whose end may come in any thread.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(Py_NewRef(object)) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (!Py_IsInitialized()) return;
    const Interpreter interpreter;
    Py_DECREF(object_);
  }
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

// Throw what Python has just raised.
[[noreturn]] inline void pass_on() {
  python_error error;
  error.persist();
  throw error;
}

// Gradients that are to be part of a graph (create_graph=True): they refuse to be differentiated.
inline void refuse_to_be_differentiated(variable_list& made) {
  for (at::Tensor& one : made)
    if (one.defined()) one.requires_grad_();
  torch::autograd::DelayedError refusal("devkernels' layers are differentiable once", static_cast<int64_t>(made.size()));
  made = refusal.apply(std::move(made));
}

}  // namespace devkernels
