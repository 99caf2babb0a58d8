#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/id.h"
#include "tensor/buffer.h"

namespace quire {

using PageId = Id<struct PageTag>;
class PagePool;

// One share of a page; the last one to go returns it to the pool. Engine thread only.
class PageRef {
 public:
  PageRef(const PageRef& other);
  PageRef(PageRef&& other) noexcept;
  PageRef& operator=(PageRef other) noexcept;
  ~PageRef();

  PageId id() const { return id_; }

 private:
  friend class PagePool;
  PageRef(PagePool& pool, PageId id);
  PagePool* pool_;
  PageId id_;
};

// The bytes and share counts of the pages of one layer group in one tier. Owned by the KvCache; engine thread
// only.
class PagePool {
 public:
  // `storage` comes from the backend and holds `pages` pages of `page_bytes`.
  PagePool(Buffer storage, size_t page_bytes, uint32_t pages);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // A page nobody holds; nothing if there is none. Full is an outcome, not an error.
  [[nodiscard]] std::optional<PageRef> take();

  std::byte* data() const { return storage_.data(); }
  size_t page_bytes() const { return page_bytes_; }
  uint32_t capacity() const { return uint32_t(shares_.size()); }
  uint32_t free_pages() const { return uint32_t(free_.size()); }
  uint32_t pages_in_use() const { return capacity() - free_pages(); }
  uint32_t peak_pages() const { return peak_pages_; }
  uint32_t shares(PageId page) const { return shares_[page.value]; }

  // Every page is either free or has a share, and is on the free list exactly once in the first case.
  void check_invariants() const;

 private:
  friend class PageRef;
  void retain(PageId page);
  void release(PageId page);

  Buffer storage_;
  size_t page_bytes_;
  std::vector<uint32_t> shares_;  // by page; 0 exactly while it is on free_
  std::vector<PageId>
      free_;  // the last one returned is taken first: its bytes may still be in the CPU's cache
  uint32_t peak_pages_ = 0;
};

}  // namespace quire
