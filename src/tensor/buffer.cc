#include "tensor/buffer.h"

#include <utility>

#include <sys/mman.h>

#include "base/error.h"

namespace quire {

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw Error("cannot get {} bytes of memory", bytes);
  data_ = {static_cast<std::byte*>(address), Release{bytes, {}}};
}

Buffer::Buffer(std::byte* data, size_t bytes, MemoryKind kind, std::function<void(std::byte*)> release)
    : data_(data, Release{bytes, std::move(release)}), size_(bytes), kind_(kind) {}

void Buffer::use_large_pages() const {
#if defined(MADV_HUGEPAGE)
  if (size_ > 0) ::madvise(data_.get(), size_, MADV_HUGEPAGE);  // a wish: small pages will do
#endif
}

void Buffer::Release::operator()(std::byte* address) const {
  if (other) {
    other(address);
  } else {
    ::munmap(address, bytes);
  }
}

}  // namespace quire
