#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace quire {

// Owned bytes, aligned to 64, zero until written; memory is taken from the system only when first touched.
// Throws Error if the address space cannot be had.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);

  // Asks for large pages: for what is written and read as a whole. REQUIRES: nothing was written yet.
  void use_large_pages() const;

  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_.get(), size_}; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* address) const;
  };
  std::unique_ptr<std::byte, Unmap> data_;
  size_t size_ = 0;
};

}  // namespace quire
