#include "kv/page_pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quire {

PageRef::PageRef(PagePool& pool, PageId id) : pool_(&pool), id_(id) {
  pool.retain(id);
}

PageRef::PageRef(const PageRef& other) : pool_(other.pool_), id_(other.id_) {
  CHECK(pool_ != nullptr);
  pool_->retain(id_);
}

PageRef::PageRef(PageRef&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}

PageRef& PageRef::operator=(PageRef other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(id_, other.id_);
  return *this;
}

PageRef::~PageRef() {
  if (pool_ != nullptr) pool_->release(id_);
}

PagePool::PagePool(Buffer storage, size_t page_bytes, uint32_t pages)
    : storage_(std::move(storage)), page_bytes_(page_bytes), shares_(pages, 0) {
  CHECK(storage_.size() >= page_bytes * pages);
  free_.reserve(pages);
  for (uint32_t page = pages; page-- > 0;) free_.push_back(PageId{page});
}

std::optional<PageRef> PagePool::take() {
  if (free_.empty()) return std::nullopt;
  const PageId page = free_.back();
  free_.pop_back();
  peak_pages_ = std::max(peak_pages_, pages_in_use());
  return PageRef(*this, page);
}

void PagePool::retain(PageId page) {
  ++shares_[page.value];
}

void PagePool::release(PageId page) {
  CHECK(shares_[page.value] > 0);
  if (--shares_[page.value] == 0) free_.push_back(page);
}

void PagePool::check_invariants() const {
  std::vector<uint32_t> on_free_list(shares_.size(), 0);
  for (PageId page : free_) ++on_free_list[page.value];
  for (size_t page = 0; page < shares_.size(); ++page)
    CHECK(on_free_list[page] == (shares_[page] == 0 ? 1 : 0));
}

}  // namespace quire
