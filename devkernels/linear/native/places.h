// What launches need of Python: memory that those on one stream share (cuBLASLt's workspace, the kernels' counters), and
// a context for threads that have none.
//
// in: a device and a stream.  out: pointers, asked for once for each stream; a launch that has found its context.
#pragma once

#include <map>
#include <utility>

#include "graph.h"
#include "interpreter.h"

namespace devkernels {

struct Places {
  std::mutex mutex;
  std::map<std::pair<int, void*>, std::pair<uint64_t, uint64_t>> known;
  PyObject* ask = nullptr;    // ask(device, stream) -> (workspace, counters), or None
  PyObject* enter = nullptr;  // enter(device): make its context current in this thread
};

inline Places& all_places() {
  static Places* const places = new Places;  // never destroyed: threads of autograd may outlive the rest
  return *places;
}

inline void forget_places() {
  std::lock_guard<std::mutex> lock(all_places().mutex);
  all_places().known.clear();
}

// (workspace, counters), or zeros where Python has none to keep. The mutex is never held while the interpreter's lock is
// waited for.
inline std::pair<uint64_t, uint64_t> find_places(int device, void* stream) {
  Places& places = all_places();
  const std::pair<int, void*> key{device, stream};
  {
    std::lock_guard<std::mutex> lock(places.mutex);
    const auto found = places.known.find(key);
    if (found != places.known.end()) return found->second;
  }
  unsigned long long work = 0, counters = 0;
  {
    const Interpreter interpreter;
    const auto number = reinterpret_cast<unsigned long long>(stream);
    PyObject* told = places.ask ? PyObject_CallFunction(places.ask, "iK", device, number) : nullptr;
    const bool good = told && told != Py_None && PyArg_ParseTuple(told, "KK", &work, &counters);
    if (!good) PyErr_Clear();  // Python takes the call, and says what is wrong
    Py_XDECREF(told);
    if (!good) return {0, 0};
  }
  std::lock_guard<std::mutex> lock(places.mutex);
  return places.known[key] = {work, counters};
}

inline void enter(int device) {
  if (!all_places().enter) return;
  const Interpreter interpreter;
  PyObject* told = PyObject_CallFunction(all_places().enter, "i", device);
  if (!told) PyErr_Clear();  // the launch will say what is wrong
  Py_XDECREF(told);
}

// Those of the launches that are needed, one after another; the first error. A thread of autograd has no context of its
// own accord, and not every function of the driver says so: changing a node of a graph ends the process.
inline int run_all(const Launches& launches, uint64_t needed, Frame frame, int device, void* stream) {
  static thread_local int entered = -1;
  if (entered != device) enter(entered = device);
  for (auto& one : launches) {
    if (!(one->needed & needed)) continue;
    int error = one->run(frame, stream);
    if (error == NO_CONTEXT) {  // someone has taken it away
      enter(device);
      error = one->run(frame, stream);
    }
    if (error) return error;
  }
  return 0;
}

}  // namespace devkernels
