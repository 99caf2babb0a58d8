// Rows that stay, head by head: the right bytes in the right number of pages, whatever each head keeps.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "kv/host_kv.h"

namespace quire {
namespace {

using Rows = std::vector<uint32_t>;
constexpr uint32_t kPage = 4;

// Three layers of unlike numbers of heads that see everything, and one with a window between them.
std::vector<KvLayerShape> shapes(KvFormat key_format_of_last = KvFormat::f32) {
  const auto layer = [](uint32_t heads, uint32_t window) {
    return KvLayerShape{.kv_heads = heads,
                        .key_dim = 2,
                        .value_dim = 4,
                        .window = window,
                        .key_format = KvFormat::f32,
                        .value_format = KvFormat::f32};
  };
  std::vector<KvLayerShape> shapes{layer(2, 0), layer(2, 8), layer(1, 0), layer(3, 0)};
  shapes.back().key_format = key_format_of_last;
  return shapes;
}
constexpr uint32_t kFullHeads = 6, kHeads = 8;
bool has_window(uint32_t head) {
  return head == 2 || head == 3;
}

// A cache, and one sequence in it that knows which token should be in each row of each head.
class Pruning : public testing::Test {
 protected:
  void make(uint32_t full_pages, std::vector<KvLayerShape> layers = shapes()) {
    table_ = PageTable(2, SequenceId{1});  // what it holds belongs to the cache before
    kv_ = std::make_unique<HostKv>(make_kv_layout(layers, kPage), std::vector<uint32_t>{full_pages, 40});
  }

  // What a token's row has in its first four bytes.
  static uint32_t mark(uint32_t head, uint32_t token, uint32_t value) {
    return (token * kHeads + head) * 2 + value;
  }

  template <class F>
  void for_each_head(const PageTable& table, F visit) {
    KvTables flat;
    const PageTable* tables[] = {&empty_, &table};  // another run beside it
    const auto groups = kv_->view(tables, flat);
    uint32_t head = 0;
    for (const auto& streams : kv_->layout().places) {
      const KvLayout::Place& place = streams.front();
      const KvLayerLayout& layer = kv_->layout().at(place);
      for (uint32_t h = 0; h < layer.shape.kv_heads; ++h, ++head)
        visit(KvView{&groups[place.group], &layer}, h, head);
    }
  }

  // Appends tokens: their rows go where a backend would write them.
  bool append(uint32_t count) {
    if (!kv_->reserve(table_, computed_ + count)) return false;
    for (uint32_t i = 0; i < count; ++i, ++tokens_, ++computed_) {
      for_each_head(table_, [&](const KvView& view, uint32_t h, uint32_t head) {
        const uint32_t row = view.head_row(1, h, computed_);
        const uint32_t marks[] = {mark(head, tokens_, 0), mark(head, tokens_, 1)};
        std::memcpy(view.key_row(1, h, row), &marks[0], 4);
        std::memcpy(view.value_row(1, h, row), &marks[1], 4);
        expected_[head].resize(row);
        expected_[head].push_back(tokens_);
      });
    }
    return true;
  }

  bool keep(const KeptRows& kept) {
    if (!kv_->keep_rows(table_, computed_, kept)) return false;
    for (uint32_t head = 0; head < kHeads; ++head) {
      if (!has_window(head)) expected_[head] = kept.of_head[head];
    }
    computed_ = kept.count;
    return true;
  }

  // So many rows of each head go, any of them; the last of those that stay take their places.
  bool drop(uint32_t count) {
    MovedRows moved;
    moved.count = computed_ - count;
    moved.of_head.resize(kHeads);
    std::map<uint32_t, Rows> expected = expected_;
    for (uint32_t head = 0; head < kHeads; ++head) {
      if (has_window(head)) continue;
      Rows all(computed_), gone;
      std::iota(all.begin(), all.end(), 0u);
      std::ranges::sample(all, std::back_inserter(gone), count, random_);
      uint32_t from = moved.count;
      for (const uint32_t to : gone) {
        if (to >= moved.count) continue;
        while (std::ranges::find(gone, from) != gone.end()) ++from;
        moved.of_head[head].push_back({from, to});
        expected[head][to] = expected[head][from++];
      }
      expected[head].resize(moved.count);
    }
    if (!kv_->drop_rows(table_, computed_, moved)) return false;
    expected_ = std::move(expected);
    computed_ = moved.count;
    return true;
  }

  void expect_right_rows() {
    std::set<const std::byte*> places;
    size_t rows = 0;
    for_each_head(table_, [&](const KvView& view, uint32_t h, uint32_t head) {
      EXPECT_EQ(view.head_row(1, h, computed_), expected_[head].size());
      if (has_window(head)) return;
      for (uint32_t row = 0; row < expected_[head].size(); ++row, ++rows) {
        uint32_t key = 0, value = 0;
        std::memcpy(&key, view.key_row(1, h, row), 4);
        std::memcpy(&value, view.value_row(1, h, row), 4);
        EXPECT_EQ(key, mark(head, expected_[head][row], 0)) << "head " << head << " row " << row;
        EXPECT_EQ(value, mark(head, expected_[head][row], 1)) << "head " << head << " row " << row;
        places.insert(view.key_row(1, h, row));
        places.insert(view.value_row(1, h, row));
      }
    });
    EXPECT_EQ(places.size(), 2 * rows);
    kv_->check_invariants();
  }

  // So many rows of each head, any of them.
  KeptRows random_rows(uint32_t count, const std::vector<uint32_t>& of_head) {
    KeptRows kept{.count = count, .of_head = std::vector<Rows>(kHeads)};
    uint32_t full = 0;
    for (uint32_t head = 0; head < kHeads; ++head) {
      if (has_window(head)) continue;
      Rows all(computed_), &rows = kept.of_head[head];
      std::iota(all.begin(), all.end(), 0u);
      std::ranges::sample(all, std::back_inserter(rows), of_head[full++], random_);
    }
    return kept;
  }

  std::mt19937 random_{5};
  std::unique_ptr<HostKv> kv_;
  PageTable empty_{2, SequenceId{9}}, table_{2, SequenceId{1}};
  uint32_t computed_ = 0, tokens_ = 0;
  std::map<uint32_t, Rows> expected_;  // by head: the token of each row
};

// Pages that so many rows of each head fill if they may lie anywhere.
uint32_t pages_of(const std::vector<uint32_t>& rows) {
  uint32_t cells = 0;
  for (const uint32_t n : rows) cells += (n + kPage - 1) / kPage;
  return (cells + kFullHeads - 1) / kFullHeads;
}

TEST_F(Pruning, HeadsThatKeepUnequalNumbersOfRowsFillThePagesOfTheirSum) {
  make(32);
  ASSERT_TRUE(append(40));
  EXPECT_EQ(kv_->group_stats(0).held, 10u);
  const std::vector<uint32_t> rows{38, 2, 2, 30, 2, 10};  // 14 on average
  ASSERT_TRUE(keep(random_rows(14, rows)));
  EXPECT_EQ(kv_->group_stats(0).held, pages_of(rows));
  EXPECT_EQ(pages_of(rows), 4u);
  expect_right_rows();
}

TEST_F(Pruning, TokensThatComeLaterFollowTheRowsOfEveryHead) {
  make(32);
  ASSERT_TRUE(append(40));
  std::vector<uint32_t> rows{39, 3, 3, 31, 3, 11};  // 15 on average
  ASSERT_TRUE(keep(random_rows(15, rows)));
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(append(1));
    for (uint32_t& n : rows) ++n;
    EXPECT_EQ(kv_->group_stats(0).held, pages_of(rows));
  }
  expect_right_rows();
}

TEST_F(Pruning, WithoutRoomForACopyTheRowsMoveInTheSequencesOwnPages) {
  make(10);
  ASSERT_TRUE(append(40));
  EXPECT_EQ(kv_->group_stats(0).free, 0u);
  ASSERT_TRUE(keep(random_rows(17, {37, 1, 9, 37, 1, 17})));
  EXPECT_EQ(kv_->group_stats(0).held, 5u);
  expect_right_rows();
  ASSERT_TRUE(append(7));
  expect_right_rows();
}

TEST_F(Pruning, WithoutRoomAndWithPagesThatOthersHoldNothingChanges) {
  make(10);
  ASSERT_TRUE(append(40));
  const PageTable other = kv_->fork(table_, 40, SequenceId{2}).value();
  EXPECT_FALSE(kv_->keep_rows(table_, computed_, random_rows(14, {38, 2, 2, 30, 2, 10})));
  EXPECT_EQ(kv_->group_stats(0).held, 10u);
  expect_right_rows();
}

TEST_F(Pruning, ATableThatFindsNoRoomToGrowStaysAsItWas) {
  make(10);
  ASSERT_TRUE(append(40));
  ASSERT_TRUE(keep(random_rows(14, {38, 2, 2, 30, 2, 10})));
  PageTable other = kv_->make_table(SequenceId{2});
  ASSERT_TRUE(kv_->reserve(other, 6 * kPage));
  ASSERT_TRUE(append(2));  // to the end of its pages
  EXPECT_FALSE(append(1));
  expect_right_rows();
  kv_->release(other, {}, 0, KvCache::Reason::forgotten);
  ASSERT_TRUE(append(1));
  expect_right_rows();
}

TEST_F(Pruning, RowsOfTheLastPagesTakeThePlacesOfRowsThatGo) {
  make(11);  // one more than it holds: what it has published is copied, or not, page by page
  for (uint32_t round = 0; round < 30; ++round) {
    ASSERT_TRUE(append(40 - computed_));
    expect_right_rows();
    const std::vector<TokenId> tokens(tokens_);
    if (round == 0) kv_->publish(table_, tokens, computed_);
    ASSERT_TRUE(drop(round % 3 == 0 ? 8 : 4));
    EXPECT_EQ(kv_->group_stats(0).held, round % 3 == 0 ? 8u : 9u);
    expect_right_rows();
    kv_->release_behind_window(table_, computed_);
  }
  kv_->release(table_, {}, computed_, KvCache::Reason::finished);
  EXPECT_EQ(kv_->group_stats(0).held, 0u);
  kv_->check_invariants();
}

TEST_F(Pruning, RowsThatOthersSeeStayWhereTheyAreWhenASequenceLetsGo) {
  make(24);
  ASSERT_TRUE(append(40));
  const std::vector<TokenId> tokens(tokens_);
  kv_->publish(table_, tokens, computed_);
  PageTable other = kv_->fork(table_, 40, SequenceId{2}).value();
  const std::map<uint32_t, Rows> whole = expected_;
  ASSERT_TRUE(drop(8));
  expect_right_rows();
  std::swap(table_, other);
  std::map<uint32_t, Rows> own = whole;
  std::swap(expected_, own);
  computed_ = 40;
  expect_right_rows();
  kv_->release(other, {}, 0, KvCache::Reason::forgotten);
  EXPECT_EQ(kv_->group_stats(0).held, 10u);
}

TEST_F(Pruning, WithoutRoomForACopyOfWhatOthersHoldNothingIsLetGo) {
  make(10);
  ASSERT_TRUE(append(40));
  const PageTable other = kv_->fork(table_, 40, SequenceId{2}).value();
  EXPECT_FALSE(drop(4));
  EXPECT_EQ(kv_->group_stats(0).held, 10u);
  expect_right_rows();
}

TEST_F(Pruning, AReleasedTableLeavesNothingBehindAndNothingToBeFound) {
  make(32);
  ASSERT_TRUE(append(40));
  ASSERT_TRUE(keep(random_rows(14, {38, 2, 2, 30, 2, 10})));
  ASSERT_TRUE(append(5));
  const std::vector<TokenId> tokens(tokens_);
  kv_->release(table_, tokens, computed_, KvCache::Reason::finished);
  EXPECT_EQ(kv_->group_stats(0).free, 32u);
  EXPECT_EQ(kv_->lookup(tokens).tokens, 0u);
  kv_->check_invariants();
}

TEST_F(Pruning, RandomBudgetsAlwaysLeaveTheRightRows) {
  for (uint32_t round = 0; round < 200; ++round) {
    const uint32_t tokens = 12 + random_() % 40, rest = random_() % kPage;
    make(round % 2 == 0 ? 40 : (tokens + kPage - 1) / kPage);
    computed_ = tokens_ = 0;
    expected_.clear();
    ASSERT_TRUE(append(tokens));
    // Each head has its rest, and cells are given to heads that have room for them.
    const uint32_t most = (tokens - rest - 1) / kPage, average = 1 + random_() % std::max(1u, most - 1);
    std::vector<uint32_t> rows(kFullHeads, rest);
    for (uint32_t given = 0; given < average * kFullHeads;) {
      uint32_t& n = rows[random_() % 2 == 0 ? random_() % kFullHeads : 0];
      if (n + kPage > tokens) {
        const auto least = std::ranges::min_element(rows);
        *least += kPage;
      } else {
        n += kPage;
      }
      ++given;
    }
    for (uint32_t& n : rows) {  // a head without rows takes some from the one that has the most
      if (n > 0) continue;
      n += kPage;
      *std::ranges::max_element(rows) -= kPage;
    }
    const uint32_t count = rest + average * kPage;
    if (count >= tokens) continue;
    ASSERT_TRUE(keep(random_rows(count, rows)));
    EXPECT_EQ(kv_->group_stats(0).held, pages_of(rows));
    ASSERT_TRUE(append(std::min(3u, tokens - count)));
    expect_right_rows();
    if (HasFailure()) return;
  }
}

TEST_F(Pruning, CellsOfUnlikeSizeHoldEqualNumbersOfRows) {
  make(10, shapes(KvFormat::f16));
  EXPECT_FALSE(kv_->layout().groups[0].has_equal_cells());
  ASSERT_TRUE(append(40));
  ASSERT_TRUE(keep(random_rows(14, {14, 14, 14, 14, 14, 14})));
  EXPECT_EQ(kv_->group_stats(0).held, 4u);
  ASSERT_TRUE(append(9));
  expect_right_rows();
}

TEST_F(Pruning, BudgetsThatDoNotAddUpOrCannotBePutIntoThePagesAreRefused) {
  make(32);
  ASSERT_TRUE(append(40));
  EXPECT_DEATH((void)keep(random_rows(14, {38, 2, 2, 30, 2, 14})), "");
  EXPECT_DEATH((void)keep(random_rows(14, {37, 3, 2, 30, 2, 10})), "");
  make(32, shapes(KvFormat::f16));
  computed_ = 0;
  ASSERT_TRUE(append(40));
  EXPECT_DEATH((void)keep(random_rows(14, {38, 2, 2, 30, 2, 10})), "");
}

}  // namespace
}  // namespace quire
