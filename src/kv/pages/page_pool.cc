#include "kv/pages/page_pool.h"

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

PagePool::PagePool(uint32_t pages) : pages_(pages) {
  free_.reserve(pages);
  for (uint32_t page = pages; page-- > 0;) free_.push_back(PageId{page});
  places_.reserve(pages);
  for (uint32_t page = 0; page < pages; ++page)
    places_.push_back(cached_.extract(cached_.insert(rank(PageId{page})).first));
}

std::optional<PageRef> PagePool::take() {
  if (free_.empty()) return std::nullopt;
  const PageId page = free_.back();
  free_.pop_back();
  return PageRef(*this, page);
}

PageRef PagePool::share(PageId page) {
  CHECK(pages_[page.value].shares > 0 || pages_[page.value].published);
  return PageRef(*this, page);
}

PagePool::Rank PagePool::rank(PageId page) const {
  return {pages_[page.value].use, ~pages_[page.value].depth, page.value};
}

void PagePool::add_to_cached(PageId page) {
  places_[page.value].value() = rank(page);
  cached_.insert(std::move(places_[page.value]));
}

bool PagePool::take_from_cached(PageId page) {
  const auto found = cached_.find(rank(page));
  if (found == cached_.end()) return false;
  places_[page.value] = cached_.extract(found);
  return true;
}

void PagePool::publish(PageId page) {
  CHECK(pages_[page.value].shares > 0);
  pages_[page.value].published = true;
}

void PagePool::unpublish(PageId page) {
  CHECK(pages_[page.value].published);
  if (pages_[page.value].shares == 0) {
    take_from_cached(page);
    free_.push_back(page);
  }
  pages_[page.value].published = false;
}

void PagePool::touch(PageId page, uint64_t use, uint32_t depth) {
  const bool is_cached = take_from_cached(page);
  pages_[page.value].use = use;
  pages_[page.value].depth = depth;
  if (is_cached) add_to_cached(page);
}

std::optional<PageId> PagePool::least_recently_used() const {
  if (cached_.empty()) return std::nullopt;
  return PageId{std::get<2>(*cached_.begin())};
}

std::vector<PageId> PagePool::least_recently_used(size_t most) const {
  std::vector<PageId> pages;
  pages.reserve(std::min(most, cached_.size()));
  for (const Rank& rank : cached_) {
    if (pages.size() >= most) break;
    pages.push_back(PageId{std::get<2>(rank)});
  }
  return pages;
}

void PagePool::retain(PageId page) {
  if (pages_[page.value].shares++ > 0) return;
  take_from_cached(page);
  peak_held_pages_ = std::max(peak_held_pages_, held_pages());
}

void PagePool::release(PageId page) {
  CHECK(pages_[page.value].shares > 0);
  if (--pages_[page.value].shares > 0) return;
  if (pages_[page.value].published) {
    add_to_cached(page);
  } else {
    free_.push_back(page);
  }
}

void PagePool::forget_all() {
  while (!cached_.empty()) take_from_cached(PageId{std::get<2>(*cached_.begin())});
  free_.clear();
  for (uint32_t page = capacity(); page-- > 0;) {
    CHECK(pages_[page].shares == 0);
    pages_[page] = {};
    free_.push_back(PageId{page});
  }
}

void PagePool::check_invariants() const {
  std::vector<uint32_t> on_free_list(pages_.size(), 0);
  for (PageId page : free_) ++on_free_list[page.value];
  for (uint32_t i = 0; i < pages_.size(); ++i) {
    const Page& page = pages_[i];
    CHECK(on_free_list[i] == (page.shares == 0 && !page.published ? 1 : 0));
    CHECK(cached_.contains(rank(PageId{i})) == (page.shares == 0 && page.published));
  }
}

}  // namespace quire
