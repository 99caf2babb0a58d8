#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/id.h"

namespace quire {

using PageId = Id<struct PageTag>;
class PagePool;

// One share of a page; when the last one goes the page is cached if it was published, and free otherwise. Engine
// thread only.
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

// The share counts of the pages of one layer group. A page is free, held (it has shares) or
// cached (published, without any share: its contents are intact until its memory is needed). It allocates nothing once it
// is made: a share can always be given up. Owned by the KvCache; engine thread only.
class PagePool {
 public:
  explicit PagePool(uint32_t pages);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // A free page; nothing if there is none. Full is an outcome, not an error.
  [[nodiscard]] std::optional<PageRef> take();
  // One more share of a page that is held or cached.
  PageRef share(PageId page);

  // The page's contents are worth keeping. REQUIRES: it is held.
  void publish(PageId page);
  // They are not, any more: it is free as soon as nobody holds it.
  void unpublish(PageId page);
  bool is_published(PageId page) const { return pages_[page.value].published; }

  // Says when a published page was used last, and how deep in its sequence it is. Both order the cached pages: the one
  // used longest ago goes first, and of one use the deepest, because what is deeper is lost with what is before it.
  void touch(PageId page, uint64_t use, uint32_t depth);
  std::optional<PageId> least_recently_used() const;
  // The first of them to go, at most so many.
  std::vector<PageId> least_recently_used(size_t most) const;
  uint64_t last_use(PageId page) const { return pages_[page.value].use; }

  uint32_t capacity() const { return uint32_t(pages_.size()); }
  uint32_t free_pages() const { return uint32_t(free_.size()); }
  uint32_t cached_pages() const { return uint32_t(cached_.size()); }
  uint32_t held_pages() const { return capacity() - free_pages() - cached_pages(); }
  uint32_t peak_held_pages() const { return peak_held_pages_; }
  uint32_t shares(PageId page) const { return pages_[page.value].shares; }

  // Every page is free again, whatever state the pool was in. REQUIRES: no share of any page is left.
  void forget_all();

  // Every page is free, held or cached, and on the lists that say so.
  void check_invariants() const;

 private:
  friend class PageRef;
  void retain(PageId page);
  void release(PageId page);

  struct Page {
    uint32_t shares = 0;
    uint32_t depth = 0;
    uint64_t use = 0;
    bool published = false;
  };
  using Rank = std::tuple<uint64_t, uint32_t, uint32_t>;  // use, inverted depth, page: the least goes first
  Rank rank(PageId page) const;
  void add_to_cached(PageId page);
  bool take_from_cached(PageId page);  // false: it was not there

  std::vector<Page> pages_;
  std::vector<PageId>
      free_;  // the last one returned is taken first: its bytes may still be in the CPU's cache
  std::set<Rank> cached_;
  std::vector<std::set<Rank>::node_type> places_;  // by page: its place in `cached_` while it is not there
  uint32_t peak_held_pages_ = 0;
};

}  // namespace quire
