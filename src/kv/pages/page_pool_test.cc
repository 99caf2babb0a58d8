#include "kv/pages/page_pool.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(PagePool, HasNoMorePagesThanItHas) {
  PagePool pool(2);
  std::optional<PageRef> one = pool.take(), two = pool.take();
  ASSERT_TRUE(one && two);
  EXPECT_NE(one->id(), two->id());
  EXPECT_FALSE(pool.take());
  EXPECT_EQ(pool.held_pages(), 2u);
  two.reset();
  EXPECT_EQ(pool.free_pages(), 1u);
  EXPECT_TRUE(pool.take());
  EXPECT_EQ(pool.peak_held_pages(), 2u);
  pool.check_invariants();
}

TEST(PagePool, FreesAPageWithItsLastShareUnlessItIsPublished) {
  PagePool pool(2);
  std::optional<PageRef> page = pool.take();
  const PageId id = page->id();
  std::optional<PageRef> share = pool.share(id);
  EXPECT_EQ(pool.shares(id), 2u);
  page.reset();
  EXPECT_EQ(pool.held_pages(), 1u);
  pool.publish(id);
  share.reset();
  EXPECT_EQ(pool.held_pages(), 0u);
  EXPECT_EQ(pool.cached_pages(), 1u);
  EXPECT_EQ(pool.free_pages(), 1u);
  pool.check_invariants();
  share = pool.share(id);
  EXPECT_EQ(pool.cached_pages(), 0u);
  pool.unpublish(id);
  EXPECT_FALSE(pool.is_published(id));
  share.reset();
  EXPECT_EQ(pool.free_pages(), 2u);
  pool.check_invariants();
}

TEST(PagePool, UnpublishingACachedPageFreesItAtOnce) {
  PagePool pool(1);
  std::optional<PageRef> page = pool.take();
  const PageId id = page->id();
  pool.publish(id);
  page.reset();
  ASSERT_EQ(pool.cached_pages(), 1u);
  pool.unpublish(id);
  EXPECT_EQ(pool.free_pages(), 1u);
  EXPECT_FALSE(pool.least_recently_used());
  pool.check_invariants();
}

TEST(PagePool, GivesUpTheOldestUseFirstAndOfOneUseTheDeepest) {
  PagePool pool(4);
  std::vector<PageId> ids;
  {
    std::vector<PageRef> pages;
    for (int i = 0; i < 4; ++i) pages.push_back(*pool.take());
    const uint64_t uses[] = {7, 5, 5, 9};
    const uint32_t depths[] = {0, 1, 2, 0};
    for (int i = 0; i < 4; ++i) {
      ids.push_back(pages[size_t(i)].id());
      pool.publish(ids.back());
      pool.touch(ids.back(), uses[i], depths[i]);
    }
    EXPECT_FALSE(pool.least_recently_used()) << "what is held is not given up";
  }
  for (const size_t expected : {2, 1, 0, 3}) {
    ASSERT_EQ(pool.least_recently_used(), ids[expected]);
    pool.unpublish(ids[expected]);
  }
  EXPECT_FALSE(pool.least_recently_used());
  pool.check_invariants();
}

TEST(PagePool, ACachedPageThatIsTouchedChangesItsPlace) {
  PagePool pool(2);
  PageId first{}, second{};
  {
    const PageRef a = *pool.take(), b = *pool.take();
    first = a.id();
    second = b.id();
    for (const PageId id : {first, second}) pool.publish(id);
    pool.touch(first, 1, 0);
    pool.touch(second, 2, 0);
  }
  EXPECT_EQ(pool.least_recently_used(), first);
  pool.touch(first, 3, 0);
  EXPECT_EQ(pool.least_recently_used(), second);
  EXPECT_EQ(pool.last_use(first), 3u);
  pool.check_invariants();
}

TEST(PagePool, CopiesAndMovesOfAShareCountAsTheyShould) {
  PagePool pool(2);
  PageRef page = *pool.take();
  const PageId id = page.id();
  {
    const PageRef copy = page;
    EXPECT_EQ(pool.shares(id), 2u);
    PageRef moved = std::move(page);
    EXPECT_EQ(pool.shares(id), 2u);
    page = *pool.take();
    EXPECT_EQ(pool.held_pages(), 2u);
    page = moved;
    EXPECT_EQ(pool.held_pages(), 1u);
    EXPECT_EQ(pool.shares(id), 3u);
  }
  EXPECT_EQ(pool.shares(id), 1u);
  pool.check_invariants();
}

TEST(PagePool, ForgetsAllItHasCached) {
  PagePool pool(3);
  for (int i = 0; i < 2; ++i) {
    const PageRef page = *pool.take();
    pool.publish(page.id());
  }
  ASSERT_GT(pool.cached_pages(), 0u);
  pool.forget_all();
  EXPECT_EQ(pool.free_pages(), 3u);
  EXPECT_EQ(pool.cached_pages(), 0u);
  pool.check_invariants();
}

}  // namespace
}  // namespace quire
