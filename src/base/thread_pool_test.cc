#include "base/thread_pool.h"

#include <atomic>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(ThreadPool, VisitsEveryIndexOnceWhateverTheNumberOfThreads) {
  for (uint32_t threads : {1u, 2u, 3u, 8u}) {
    ThreadPool pool(threads);
    for (size_t count : {0u, 1u, 5u, 64u, 1000u}) {
      for (size_t grain : {1u, 7u, 64u}) {
        std::vector<std::atomic<int>> visits(count);
        pool.parallel_for(count, grain, [&](size_t begin, size_t end) {
          EXPECT_LT(begin, end);
          for (size_t i = begin; i < end; ++i) ++visits[i];
        });
        for (const auto& visit : visits) EXPECT_EQ(visit, 1);
      }
    }
  }
}

TEST(ThreadPool, WhatABodyThrowsReachesTheCallerAndTheNextLoopRuns) {
  for (uint32_t threads : {1u, 2u, 4u}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      EXPECT_THROW(pool.parallel_for(64, 1,
                                     [&](size_t begin, size_t end) {
                                       if (begin <= 40 && 40 < end) throw std::bad_alloc();
                                     }),
                   std::bad_alloc);
      std::atomic<size_t> visits = 0;
      pool.parallel_for(64, 1, [&](size_t begin, size_t end) { visits += end - begin; });
      EXPECT_EQ(visits, 64u);
    }
  }
}

TEST(ThreadPool, RunsManyShortLoopsInOrder) {
  ThreadPool pool(4);
  std::vector<uint64_t> values(64, 0);
  for (int round = 0; round < 5000; ++round) {
    pool.parallel_for(values.size(), 4, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) values[i] += i;
    });
  }
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], 5000 * i);
}

TEST(ThreadPool, EndsWhileItsThreadsAreStillWakingUp) {
  // The caller is through with a short loop before most threads have heard of it. One that slept on here would never be joined.
  std::atomic<size_t> visits = 0;
  for (int round = 0; round < 200; ++round) {
    ThreadPool pool(9);
    pool.parallel_for(20, 1, [&](size_t begin, size_t end) { visits += end - begin; });
  }
  EXPECT_EQ(visits, 4000u);
}

TEST(UsableCpus, IsAtLeastOne) {
  EXPECT_GE(usable_cpus(), 1u);
}

}  // namespace
}  // namespace quire
