// Launches that were planned in Python: a product of cuBLASLt, a kernel of this package, a CUDA graph, a copy.
//
// in: numbers from Python (handles, addresses of functions, sizes), then a frame of pointers.  out: work on a stream.
// Nothing here needs CUDA's headers: the functions come as addresses of what the process has loaded already.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace devkernels {

using Frame = const uint64_t*;           // the pointers of a call, each in a slot of its own
constexpr uint64_t NONE = ~uint64_t{0};  // in place of a slot
constexpr int NO_CONTEXT = 201;          // CUDA_ERROR_INVALID_CONTEXT: a thread's first launch

// Numbers one after another, as Python wrote them.
class Words {
 public:
  explicit Words(std::vector<uint64_t> words) : words_(std::move(words)) {}
  uint64_t next() { return words_.at(at_++); }
  uint64_t slot() {
    const uint64_t found = next();
    if (found >= slots && found != NONE) throw std::invalid_argument("there is no such slot");
    return found;
  }
  template <class T>
  T as() { return reinterpret_cast<T>(next()); }
  void end() const {
    if (at_ != words_.size()) throw std::invalid_argument("more words than are read");
  }
  uint64_t slots = 0;  // how many there are

 private:
  std::vector<uint64_t> words_;
  size_t at_ = 0;
};

inline uint64_t pick(Frame frame, uint64_t slot) { return slot == NONE ? 0 : frame[slot]; }

class Launch {
 public:
  virtual ~Launch() = default;
  // 0, or the library's error, of which nothing has been launched.
  virtual int run(Frame frame, void* stream) = 0;
  virtual bool uses(uint64_t slot) const = 0;
  virtual bool sums() const { return false; }  // whether its epilog writes a sum, asked for or not
  uint64_t needed = 7;                         // by which gradients: 1 the input's, 2 the weight's, 4 the bias's
};

// cublasLtMatmul with a descriptor of its own, which is written only where a pointer differs from the last call's.
class Product final : public Launch {
 public:
  explicit Product(Words& words) {
    matmul_ = words.as<Matmul>();
    set_ = words.as<Set>();
    for (void** one : {&handle_, &descriptor_, &alpha_, &beta_, &a_layout_, &b_layout_, &c_layout_, &d_layout_, &algorithm_})
      *one = words.as<void*>();
    workspace_ = words.next();
    for (uint64_t* one : {&a_, &b_, &out_, &side_, &aux_, &work_}) *one = words.slot();
  }

  int run(Frame frame, void* stream) override {
    const uint64_t side = pick(frame, side_), aux = pick(frame, aux_);
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (side || aux) lock.lock();  // no other thread may write the descriptor between this and the launch
    int error = write(BIAS_POINTER, side, &held_side_);
    if (!error) error = write(AUX_POINTER, aux, &held_aux_);
    if (error) return error;
    // cuBLASLt is column-major: its A is the caller's b.
    return matmul_(handle_, descriptor_, alpha_, address(frame, b_), b_layout_, address(frame, a_), a_layout_, beta_,
                   nullptr, c_layout_, address(frame, out_), d_layout_, algorithm_,
                   address(frame, work_), workspace_, stream);
  }

  bool uses(uint64_t slot) const override {
    for (const uint64_t one : {a_, b_, out_, side_, aux_, work_})
      if (slot == one) return true;
    return false;
  }
  bool sums() const override { return side_ != NONE; }

 private:
  using Matmul = int (*)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*,
                         void*, void*, void*, const void*, void*, size_t, void*);
  using Set = int (*)(void*, int, const void*, size_t);
  static constexpr int BIAS_POINTER = 8, AUX_POINTER = 11;  // cublasLtMatmulDescAttributes_t

  static void* address(Frame frame, uint64_t slot) { return reinterpret_cast<void*>(pick(frame, slot)); }

  int write(int attribute, uint64_t value, uint64_t* held) {
    if (!value || value == *held) return 0;
    *held = 0;
    const int error = set_(descriptor_, attribute, &value, sizeof value);
    if (!error) *held = value;
    return error;
  }

  Matmul matmul_;
  Set set_;
  void *handle_, *descriptor_, *alpha_, *beta_, *a_layout_, *b_layout_, *c_layout_, *d_layout_, *algorithm_;
  uint64_t workspace_, a_, b_, out_, side_, aux_, work_;
  uint64_t held_side_ = 0, held_aux_ = 0;
  std::mutex mutex_;
};

// One parameter of a kernel: a pointer, a number that stays, a tensor map (CUtensorMap) of a matrix at a pointer, or
// numbers in a row, some of which are pointers.
class Parameter {
 public:
  enum Kind : uint64_t { POINTER, NUMBER, MAP, ROW };

  Parameter() = default;
  explicit Parameter(Words& words) : kind_(words.next()) {
    if (kind_ == NUMBER) {
      value_ = words.next();
      return;
    }
    if (kind_ == ROW) {
      row_.resize(words.next());
      for (uint64_t& one : row_) one = words.next();
      for (uint64_t count = words.next(); count; count--) {
        const uint64_t place = words.next();
        if (place >= row_.size()) throw std::invalid_argument("a pointer lies outside of its row");
        pointers_.emplace_back(place, words.slot());
      }
      return;
    }
    slot_ = words.slot();
    if (kind_ != MAP) return;
    encode_ = words.as<Encode>();
    type_ = static_cast<int>(words.next());
    rank_ = words.next();
    if (rank_ < 1 || rank_ > 5) throw std::invalid_argument("a tensor map has 1 to 5 axes");
    for (uint64_t i = 0; i < rank_; i++) sizes_[i] = words.next();
    for (uint64_t i = 0; i + 1 < rank_; i++) strides_[i] = words.next();
    for (uint64_t i = 0; i < rank_; i++) box_[i] = static_cast<uint32_t>(words.next());
    swizzle_ = static_cast<int>(words.next());
    promotion_ = static_cast<int>(words.next());
  }

  int at(Frame frame) {
    for (const auto& [place, slot] : pointers_) row_[place] = pick(frame, slot);
    if (kind_ == POINTER) value_ = pick(frame, slot_);
    if (kind_ != MAP || pick(frame, slot_) == value_) return 0;
    value_ = 0;
    const uint64_t pointer = pick(frame, slot_);
    constexpr uint32_t ones[5] = {1, 1, 1, 1, 1};
    const int error = encode_(map_.bytes, type_, static_cast<uint32_t>(rank_), reinterpret_cast<void*>(pointer), sizes_,
                              strides_, box_, ones, 0, swizzle_, promotion_, 0);
    if (!error) value_ = pointer;
    return error;
  }

  void* place() {
    if (kind_ == MAP) return map_.bytes;
    return kind_ == ROW ? row_.data() : &value_;
  }
  bool uses(uint64_t slot) const {
    for (const auto& one : pointers_)
      if (slot == one.second) return true;
    return slot_ != NONE && slot == slot_;
  }

 private:
  using Encode = int (*)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*,
                         int, int, int, int);
  struct alignas(64) Map { unsigned char bytes[128] = {}; };

  uint64_t kind_ = NUMBER, slot_ = NONE, value_ = 0, rank_ = 0;
  Encode encode_ = nullptr;
  int type_ = 0, swizzle_ = 0, promotion_ = 0;
  uint64_t sizes_[5] = {}, strides_[5] = {};
  uint32_t box_[5] = {};
  Map map_;
  std::vector<uint64_t> row_;
  std::vector<std::pair<uint64_t, uint64_t>> pointers_;  // place in the row, slot
};

// cuLaunchKernelEx of one function with parameters laid out once.
class Kernel final : public Launch {
 public:
  explicit Kernel(Words& words) {
    launch_ = words.as<LaunchEx>();
    function_ = words.as<void*>();
    for (unsigned& one : dimensions_) one = static_cast<unsigned>(words.next());
    shared_bytes_ = static_cast<unsigned>(words.next());
    const uint64_t count = words.next();
    for (uint64_t i = 0; i < count; i++) parameters_.push_back(std::make_unique<Parameter>(words));
    for (auto& one : parameters_) places_.push_back(one->place());
  }

  int run(Frame frame, void* stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& one : parameters_)
      if (const int error = one->at(frame)) return error;
    Configuration about{};
    std::memcpy(about.dimensions, dimensions_, sizeof dimensions_);
    about.shared_bytes = shared_bytes_;
    about.stream = stream;
    return launch_(&about, function_, places_.data(), nullptr);
  }

  bool uses(uint64_t slot) const override {
    for (auto& one : parameters_)
      if (one->uses(slot)) return true;
    return false;
  }

 private:
  struct Configuration {  // CUlaunchConfig
    unsigned dimensions[6], shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
  };
  using LaunchEx = int (*)(const Configuration*, void*, void**, void**);

  LaunchEx launch_;
  void* function_;
  unsigned dimensions_[6], shared_bytes_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<void*> places_;
  std::mutex mutex_;
};

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

  bool uses(uint64_t slot) const override {
    for (auto& one : nodes_)
      if (one->parameter.uses(slot)) return true;
    return false;
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
  bool uses(uint64_t slot) const override { return slot == source_; }

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
