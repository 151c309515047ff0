// Memory that launches on one stream share: cuBLASLt's workspace, the kernels' counters.
//
// in: a device and a stream.  out: pointers, asked of Python once for each stream.
#pragma once

#include <Python.h>

#include <map>
#include <utility>

#include "launches.h"

namespace devkernels {

struct Places {
  std::mutex mutex;
  std::map<std::pair<int, void*>, std::pair<uint64_t, uint64_t>> known;
  PyObject* ask = nullptr;  // ask(device, stream) -> (workspace, counters), or None
};

inline Places& all_places() {
  static Places* const places = new Places;  // never destroyed: threads of autograd may outlive the rest
  return *places;
}

inline void forget_places() {
  std::lock_guard<std::mutex> lock(all_places().mutex);
  all_places().known.clear();
}

// False where Python has none to keep. The mutex is never held while the interpreter's lock is waited for.
inline bool find_places(int device, void* stream, Frame& frame) {
  Places& places = all_places();
  const std::pair<int, void*> key{device, stream};
  {
    std::lock_guard<std::mutex> lock(places.mutex);
    const auto found = places.known.find(key);
    if (found != places.known.end()) {
      frame[WORK] = found->second.first, frame[COUNTERS] = found->second.second;
      return true;
    }
  }
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* told = places.ask ? PyObject_CallFunction(places.ask, "iK", device, reinterpret_cast<unsigned long long>(stream))
                              : nullptr;
  unsigned long long work = 0, counters = 0;
  const bool good = told && told != Py_None && PyArg_ParseTuple(told, "KK", &work, &counters);
  if (!good) PyErr_Clear();  // Python takes the call, and says what is wrong
  Py_XDECREF(told);
  PyGILState_Release(state);
  if (!good) return false;
  std::lock_guard<std::mutex> lock(places.mutex);
  places.known[key] = {work, counters};
  frame[WORK] = work, frame[COUNTERS] = counters;
  return true;
}

}  // namespace devkernels
