#include "ranks/thread_ranks.h"

#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ranks/column_gather.h"

namespace quire {
namespace {

void on_each(std::vector<std::unique_ptr<Ranks>>& ranks, const std::function<void(Ranks&)>& work) {
  std::vector<std::thread> threads;
  for (const auto& one : ranks) threads.emplace_back([&work, &one] { work(*one); });
  for (std::thread& thread : threads) thread.join();
}

TEST(RowShare, PartsFollowEachOtherAndLeaveNothingOut) {
  for (const size_t total : {3u, 16u, 17u, 64u, 501u}) {
    for (const uint32_t of : {1u, 2u, 3u}) {
      for (const size_t unit : {size_t(1), row_unit(total, of)}) {
        size_t at = 0;
        for (uint32_t r = 0; r < of; ++r) {
          const RowShare share = share_of(total, unit, {r, of});
          EXPECT_EQ(share.begin, at);
          EXPECT_GT(share.count, 0u) << total << " rows, unit " << unit << ", rank " << r << " of " << of;
          at = share.end();
        }
        EXPECT_EQ(at, total);
      }
    }
  }
  EXPECT_EQ(share_of(3, 1, {0, 2}), (RowShare{0, 1}));
  EXPECT_EQ(share_of(3, 1, {1, 2}), (RowShare{1, 2}));
}

TEST(ThreadRanks, GatheredColumnsAreWholeOnAllRanksOrOnTheFirst) {
  for (const uint32_t count : {1u, 2u, 3u}) {
    for (const size_t rows : {1u, 5u}) {
      for (const size_t unit : {1u, 16u}) {
        auto ranks = make_thread_ranks(count);
        on_each(ranks, [&](Ranks& rank) {
          constexpr size_t kWidth = 100, kStride = 128;
          const auto value = [](size_t row, size_t col) { return float(1000 * row + col); };
          for (const Ranks::To to : {Ranks::To::all, Ranks::To::first}) {
            std::vector<float> memory(rows * kStride, -1);
            const Rows all{memory.data(), rows, kWidth, kStride};
            const RowShare own = share_of(kWidth, unit, rank.place());
            for (size_t i = 0; i < rows; ++i)
              for (size_t c = own.begin; c < own.end(); ++c) all.row(i)[c] = value(i, c);
            ColumnGather(rank).gather(all, unit, to);
            const bool is_whole = to == Ranks::To::all || rank.leads();
            for (size_t i = 0; i < rows; ++i) {
              for (size_t c = 0; c < kWidth; ++c) {
                const bool is_own = c >= own.begin && c < own.end();
                EXPECT_EQ(all.row(i)[c], is_whole || is_own ? value(i, c) : -1);
              }
              for (size_t c = kWidth; c < kStride; ++c) EXPECT_EQ(memory[i * kStride + c], -1);
            }
          }
          EXPECT_EQ(rank.traffic().gathers, 2u);
          const size_t others = (kWidth - share_of(kWidth, unit, rank.place()).count) * rows * sizeof(float);
          EXPECT_EQ(rank.traffic().gathered_bytes, (rank.leads() ? 2 : 1) * others);
        });
      }
    }
  }
}

TEST(ThreadRanks, MessagesComeInOrderAndThenRankZeroHasLeft) {
  auto ranks = make_thread_ranks(3);
  std::unique_ptr<Ranks> first = std::move(ranks[0]);
  std::vector<std::thread> others;
  for (uint32_t r : {1u, 2u}) {
    others.emplace_back([&ranks, r] {
      for (int i = 0; i < 10; ++i) {
        const std::vector<std::byte> expected(size_t(i) + 1, std::byte(i));
        EXPECT_EQ(ranks[r]->hear(), expected);
      }
      EXPECT_TRUE(ranks[r]->hear().empty());
    });
  }
  for (int i = 0; i < 10; ++i) first->tell(std::vector<std::byte>(size_t(i) + 1, std::byte(i)));
  EXPECT_EQ(first->traffic().messages, 10u);
  EXPECT_EQ(first->traffic().message_bytes, 55u);
  first.reset();
  for (std::thread& other : others) other.join();
}

TEST(ThreadRanks, WhatOneGivesUpEndsForAll) {
  auto ranks = make_thread_ranks(3);
  on_each(ranks, [&](Ranks& rank) {
    std::vector<std::byte> all(3);
    const std::vector<size_t> pieces(3, 1);
    try {
      if (rank.rank() == 0) rank.give_up("the sky has fallen");
      if (rank.rank() == 1) rank.gather(all, pieces, Ranks::To::all);
      if (rank.rank() == 2) rank.hear();
      ADD_FAILURE() << "rank " << rank.rank() << " went on";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "the sky has fallen");
    }
  });
}

}  // namespace
}  // namespace quire
