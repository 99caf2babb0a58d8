#include "backend/cpu/matmul/panel_outliers.h"

#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "backend/cpu/matmul/matmul_case.h"

namespace quire {
namespace {

constexpr size_t kCols = 1536, kTokens = 23;

// Tokens with outliers in all of their columns and in a few, so that counts differ.
struct Rows {
  MatmulCase test{DType::q8_0, 16, kCols, kTokens};
  Buffer bytes;
  OutlierRows rows;

  Rows() {
    test.add_outliers();
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t i = 0; i < t % 5; ++i) test.input[t * kCols + 600 + 3 * i] = 100.0f + float(i);
    }
    bytes = test.input_rows(scalar_kernels());
    const ActivationForm form = scalar_kernels().form[size_t(DType::q8_0)];
    rows = {bytes.data(), activation_row_bytes(form, kCols), kCols, group_values(form), kTokens};
  }

  Q8Row row(size_t t) const { return {bytes.data() + t * rows.stride_bytes, kCols, rows.group}; }
};

TEST(OutlierList, HasAllOutliersOfASpanTokenByTokenInTheOrderOfColumns) {
  const Rows given;
  OutlierList list;
  list.fill(given.rows);
  ASSERT_EQ(list.use_ends.size(), outlier_spans(kCols));
  size_t use = 0;
  for (size_t span = 0; span < list.use_ends.size(); ++span) {
    std::vector<bool> seen(kTokens, false);
    while (use < list.use_ends[span]) {
      const size_t token = list.uses[use].token;
      EXPECT_FALSE(seen[token]) << "a token's outliers do not follow each other";
      seen[token] = true;
      const Q8Row row = given.row(token);
      const Outlier* outliers = row.outliers + span * most_outliers(given.rows.group);
      for (size_t i = 0; i < row.outlier_counts[span]; ++i, ++use) {
        EXPECT_EQ(list.uses[use].token, token);
        EXPECT_EQ(list.uses[use].col, outliers[i].col);
        EXPECT_EQ(list.uses[use].value, outliers[i].value);
      }
    }
    for (size_t t = 0; t < kTokens; ++t) EXPECT_EQ(seen[t], given.row(t).outlier_counts[span] > 0);
  }
  EXPECT_EQ(use, list.uses.size());
}

TEST(OutlierList, HasTokensByHowManyOutliersTheyHave) {
  const Rows given;
  OutlierList list;
  list.fill(given.rows);
  size_t use = 0;
  for (size_t span = 0; span < list.use_ends.size(); ++span) {
    size_t before = 0;
    while (use < list.use_ends[span]) {
      const size_t count = given.row(list.uses[use].token).outlier_counts[span];
      EXPECT_GE(count, before);
      before = count;
      use += count;
    }
  }
}

TEST(OutlierList, NamesEachColumnOfASpanOnce) {
  const Rows given;
  OutlierList list;
  list.fill(given.rows);
  size_t use = 0, column = 0;
  for (size_t span = 0; span < list.use_ends.size(); ++span) {
    std::vector<bool> used(kOutlierSpan, false);
    for (; use < list.use_ends[span]; ++use) used[list.uses[use].col] = true;
    for (size_t c = 0; c < kOutlierSpan; ++c) {
      if (!used[c]) continue;
      ASSERT_LT(column, list.column_ends[span]);
      EXPECT_EQ(list.columns[column++], c);
    }
    EXPECT_EQ(column, list.column_ends[span]);
  }
}

TEST(OutlierList, HasAllOutliersOfASpanInTheOrderOfColumnsIfThatIsAskedFor) {
  const Rows given;
  OutlierRows by_column = given.rows;
  by_column.order = OutlierOrder::by_column;
  OutlierList list;
  list.fill(by_column);
  ASSERT_EQ(list.use_ends.size(), outlier_spans(kCols));
  size_t use = 0;
  for (size_t span = 0; span < list.use_ends.size(); ++span) {
    size_t expected = 0;
    for (size_t t = 0; t < kTokens; ++t) expected += given.row(t).outlier_counts[span];
    ASSERT_EQ(list.use_ends[span], use + expected);
    std::vector<size_t> next(kTokens, 0);  // by token: which of its outliers comes next
    for (size_t last = 0; use < list.use_ends[span]; ++use) {
      const OutlierUse& one = list.uses[use];
      EXPECT_GE(one.col, last);
      last = one.col;
      const Outlier& outlier =
          given.row(one.token).outliers[span * most_outliers(given.rows.group) + next[one.token]++];
      EXPECT_EQ(one.col, outlier.col);
      EXPECT_EQ(one.value, outlier.value);
    }
  }
  EXPECT_EQ(use, list.uses.size());
}

TEST(OutlierLists, AreMadeOnceForTheSameRowsWhicheverThreadWantsThem) {
  const Rows given;
  OutlierRows half = given.rows;
  half.tokens = kTokens / 2;
  OutlierLists lists;
  const OutlierList* seen[4] = {};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] { seen[i] = &lists.of(i % 2 == 0 ? given.rows : half); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_EQ(seen[1], seen[3]);
  EXPECT_NE(seen[0], seen[1]);
  EXPECT_GT(seen[0]->uses.size(), seen[1]->uses.size());
}

TEST(OutlierLists, AreMadeAnewAfterRowsHaveChanged) {
  Rows given;
  OutlierLists lists;
  const size_t before = lists.of(given.rows).uses.size();
  for (size_t i = 0; i < given.test.input.size(); ++i) given.test.input[i] = 1.0f;
  const Buffer plain = given.test.input_rows(scalar_kernels());
  std::memcpy(given.bytes.data(), plain.data(), plain.size());
  lists.clear();
  EXPECT_GT(before, 0u);
  EXPECT_EQ(lists.of(given.rows).uses.size(), 0u);
}

TEST(OutlierLists, ChangeNoProduct) {
  for (const CpuKernels& kernels : present_kernels()) {
    for (const size_t tokens : {1u, 3u, 19u}) {
      MatmulCase test(DType::q4_0, 40, kCols, tokens);
      test.add_outliers();
      OutlierLists lists;
      EXPECT_EQ(test.product(kernels, tokens, 16, &lists), test.product(kernels, tokens, 16, nullptr))
          << kernels.name << ", " << tokens << " tokens";
    }
  }
}

TEST(PanelStore, AddsOutliersToAnyNumberOfPanelsAndTokensAsTheTwinDoes) {
  for (const CpuKernels& kernels : present_kernels()) {
    for (DType dtype :
         {DType::q4_0, DType::q8_0, DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k}) {
      for (const size_t tokens : {4u, 5u, 17u, 32u, 33u}) {
        const MatmulCase test = MatmulCase(dtype, 9 * kPanelRows + 5, kCols, tokens).add_outliers();
        const std::vector<float> expected = test.product(kernels.twin());
        for (const size_t call_rows : {test.rows, size_t(40), 3 * kPanelRows})
          ASSERT_EQ(test.product(kernels, tokens, call_rows), expected)
              << kernels.name << ", " << traits(dtype).name << ", " << tokens << " tokens, " << call_rows
              << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace quire
