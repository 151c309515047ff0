// The interpreter's lock, for as long as an object lives: threads of autograd come without it.
#pragma once

#include <Python.h>

namespace devkernels {

class Interpreter {
 public:
  Interpreter() : state_(PyGILState_Ensure()) {}
  ~Interpreter() { PyGILState_Release(state_); }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace devkernels
