#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace quire::jinja {

// What one rendering may spend. A template is somebody else's program: it gets no more than this.
struct Limits {
  uint64_t steps = 20'000'000;      // evaluated nodes, visited elements, and 16-byte pieces of copied text
  size_t bytes = size_t(64) << 20;  // strings, lists and dicts alive at one time, the output included
  uint32_t depth = 700;             // nested evaluation, macro calls included
};

// Lists within lists go no deeper, so that printing, comparing and freeing them may recurse.
constexpr uint32_t kMaxValueDepth = 200;

// A failure inside a template. The line is added where the rendering ends.
class Failure : public std::runtime_error {
 public:
  template <class... Args>
  explicit Failure(fmt::format_string<Args...> format, Args&&... args)
      : std::runtime_error(fmt::format(format, std::forward<Args>(args)...)) {}
};

// The message of the template's own raise_exception, which reaches the user as it is.
class Raised : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Counts what a rendering has spent. One per rendering, on its thread.
class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  const Limits& limits() const { return limits_; }

  void step(uint64_t count = 1) {
    if (count > limits_.steps - steps_) throw Failure("it takes more than {} steps", limits_.steps);
    steps_ += count;
  }
  void copy_bytes(size_t count) { step(1 + count / 16); }

  // Asks before memory is taken, for sizes that a template can multiply.
  void check_room(size_t bytes) const {
    if (bytes > limits_.bytes - bytes_) throw Failure("it needs more than {} MiB", limits_.bytes >> 20);
  }
  void take(size_t bytes) {
    check_room(bytes);
    bytes_ += bytes;
  }
  void give_back(size_t bytes) { bytes_ -= bytes; }

 private:
  const Limits limits_;
  uint64_t steps_ = 0;  // <= limits_.steps
  size_t bytes_ = 0;    // <= limits_.bytes
};

// A share of a heap, held by the object that takes the memory. Without a heap it counts nothing: constants of
// the template and the conversation itself.
class HeapShare {
 public:
  HeapShare() = default;
  HeapShare(Heap* heap, size_t bytes) : heap_(heap), bytes_(bytes) {
    if (heap_) heap_->take(bytes_);
  }
  void grow(size_t bytes) {
    if (!heap_) return;
    heap_->take(bytes);
    bytes_ += bytes;
  }
  HeapShare(HeapShare&& other) noexcept
      : heap_(std::exchange(other.heap_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  HeapShare& operator=(HeapShare&& other) noexcept {
    std::swap(heap_, other.heap_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HeapShare() {
    if (heap_) heap_->give_back(bytes_);
  }

 private:
  Heap* heap_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace quire::jinja
