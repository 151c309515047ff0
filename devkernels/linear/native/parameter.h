// What launches are told: numbers from Python, once; then the pointers of each call, in slots.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <utility>
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
    if (kind_ != MAP) return 0;
    const uint64_t pointer = pick(frame, slot_);
    if (pointer == value_) return 0;
    value_ = 0;
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
  bool uses(uint64_t slot) const { return slot_ != NONE && slot == slot_; }

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

}  // namespace devkernels
