#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace quire {

// Where bytes are, and who may touch them: of a device's only its backend.
enum class MemoryKind : uint8_t { host, pinned, device };

// Owned bytes. Those of the host are aligned to 64, zero until written, and taken from the system only when first touched.
class Buffer {
 public:
  Buffer() = default;
  // Of the host. Throws Error if the address space cannot be had.
  explicit Buffer(size_t bytes);
  // Of whatever kind, given back by `release`.
  Buffer(std::byte* data, size_t bytes, MemoryKind kind, std::function<void(std::byte*)> release);

  MemoryKind kind() const { return kind_; }

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
  struct Release {
    size_t bytes;
    std::function<void(std::byte*)> other;  // none: it is mapped
    void operator()(std::byte* address) const;
  };
  std::unique_ptr<std::byte, Release> data_;
  size_t size_ = 0;
  MemoryKind kind_ = MemoryKind::host;
};

}  // namespace quire
