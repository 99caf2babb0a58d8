#include "runner/step_message.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

StepInput some_step() {
  StepInput step;
  const std::vector<TokenId> tokens = {5, 6, 7};
  step.add(tokens, 4, StepInput::Logits::last);
  step.add(std::span(tokens).first(1), 9, StepInput::Logits::all);
  step.tables.groups.resize(2);
  step.tables.groups[0].page_ids = {3, 1, kNoPage};
  step.tables.groups[0].table_begin = {0, 2};
  step.tables.groups[1].page_ids = {8};
  step.tables.groups[1].table_begin = {0, 0};
  step.tables.groups[1].row_shift = {0, 32};
  return step;
}

TEST(StepMessage, AStepIsWhatItWas) {
  const StepInput step = some_step();
  const std::vector<std::byte> message = step_message(step);
  EXPECT_EQ(kind_of(message), MessageKind::step);
  const StepInput read = read_step(message);
  EXPECT_EQ(read.tokens, step.tokens);
  EXPECT_EQ(read.positions, step.positions);
  EXPECT_EQ(read.run_of_token, step.run_of_token);
  ASSERT_EQ(read.runs.size(), 2u);
  EXPECT_EQ(read.runs[1].begin, 3u);
  EXPECT_EQ(read.runs[1].row, 9u);
  EXPECT_EQ(read.logit_rows, step.logit_rows);
  EXPECT_EQ(read.layers, step.layers);
  ASSERT_EQ(read.tables.groups.size(), 2u);
  for (size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(read.tables.groups[g].page_ids, step.tables.groups[g].page_ids);
    EXPECT_EQ(read.tables.groups[g].table_begin, step.tables.groups[g].table_begin);
    EXPECT_EQ(read.tables.groups[g].row_shift, step.tables.groups[g].row_shift);
  }
}

TEST(StepMessage, MovesAndPagesAreWhatTheyWere) {
  KvMoves moves;
  KvMove& move = moves.list.emplace_back();
  move.group = 1;
  move.bytes = 512;
  move.from = uint64_t(5) << 32;
  move.to = 4096;
  const KvMoves read = read_moves(moves_message(moves));
  ASSERT_EQ(read.list.size(), 1u);
  EXPECT_EQ(read.list[0].group, 1u);
  EXPECT_EQ(read.list[0].bytes, 512u);
  EXPECT_EQ(read.list[0].from, uint64_t(5) << 32);
  EXPECT_EQ(read.list[0].to, 4096u);
  const std::vector<uint32_t> pages = {4, 9};
  EXPECT_EQ(read_pages(pages_message(pages)), pages);
}

TEST(StepMessage, WhatIsCutOrOfAnotherKindIsRefused) {
  const std::vector<std::byte> message = step_message(some_step());
  for (size_t length = 0; length < message.size(); ++length)
    EXPECT_THROW(read_step(std::span(message).first(length)), Error) << length;
  std::vector<std::byte> longer = message;
  longer.push_back({});
  EXPECT_THROW(read_step(longer), Error);
  EXPECT_THROW(read_moves(message), Error);
  EXPECT_THROW(kind_of(std::span(message).first(3)), Error);
}

}  // namespace
}  // namespace quire
