#include "tensor/buffer.h"

#include <sys/mman.h>

#include "base/error.h"

namespace quire {

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* address =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw Error("cannot get {} bytes of memory", bytes);
  data_ = {static_cast<std::byte*>(address), Unmap{bytes}};
}

void Buffer::use_large_pages() const {
#if defined(MADV_HUGEPAGE)
  if (size_ > 0) ::madvise(data_.get(), size_, MADV_HUGEPAGE);  // a wish: small pages will do
#endif
}

void Buffer::Unmap::operator()(std::byte* address) const {
  ::munmap(address, bytes);
}

}  // namespace quire
