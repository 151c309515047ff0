// CUDA graphs and copies, and launches of every kind in a row, as Python described them.
#pragma once

#include "launches.h"

namespace devkernels {

// cuGraphLaunch of a graph, some kernels of which get this call's pointers before.
class Graph final : public Launch {
 public:
  explicit Graph(Words& words) : launch_(words.as<LaunchGraph>()), set_(words.as<Set>()), graph_(words.as<void*>()) {
    for (uint64_t count = words.next(); count; count--) nodes_.push_back(std::make_unique<Node>(words));
  }

  int run(Frame frame, void* stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& one : nodes_) {
      if (const int error = one->parameter.at(frame)) return error;
      if (const int error = set_(graph_, one->node, &one->about)) return error;
    }
    return launch_(graph_, stream);
  }

 private:
  struct About {  // CUDA_KERNEL_NODE_PARAMS
    void* function;
    unsigned dimensions[6], shared_bytes;
    void **parameters, **extra, *kernel, *context;
  };
  struct Node {
    explicit Node(Words& words) : node(words.as<void*>()) {
      about.function = words.as<void*>();
      for (unsigned& one : about.dimensions) one = static_cast<unsigned>(words.next());
      about.shared_bytes = static_cast<unsigned>(words.next());
      parameter = Parameter(words);
      place = parameter.place();
      about.parameters = &place;
    }
    void *node, *place;
    About about{};
    Parameter parameter;
  };
  using LaunchGraph = int (*)(void*, void*);
  using Set = int (*)(void*, void*, const About*);

  LaunchGraph launch_;
  Set set_;
  void* graph_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::mutex mutex_;
};

// cuMemcpyDtoDAsync to a place that stays; nothing where the source lies there already.
class Copy final : public Launch {
 public:
  explicit Copy(Words& words)
      : copy_(words.as<CopyBytes>()), target_(words.next()), source_(words.slot()), bytes_(words.next()) {}
  int run(Frame frame, void* stream) override {
    const uint64_t source = pick(frame, source_);
    return source == target_ ? 0 : copy_(target_, source, bytes_, stream);
  }

 private:
  using CopyBytes = int (*)(uint64_t, uint64_t, size_t, void*);
  CopyBytes copy_;
  uint64_t target_, source_, bytes_;
};

using Launches = std::vector<std::unique_ptr<Launch>>;

inline Launches read_launches(Words& words) {
  Launches launches;
  for (uint64_t count = words.next(); count; count--) {
    const uint64_t kind = words.next(), needed = words.next();
    switch (kind) {
      case 0: launches.push_back(std::make_unique<Product>(words)); break;
      case 1: launches.push_back(std::make_unique<Kernel>(words)); break;
      case 2: launches.push_back(std::make_unique<Graph>(words)); break;
      case 3: launches.push_back(std::make_unique<Copy>(words)); break;
      default: throw std::invalid_argument("there is no such launch");
    }
    launches.back()->needed = needed;
  }
  return launches;
}

}  // namespace devkernels
