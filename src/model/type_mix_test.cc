#include "model/type_mix.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

TensorEntry tensor(std::string name, std::vector<uint64_t> shape) {
  return {std::move(name), DType::f32, std::move(shape), 0};
}

TEST(TypeMix, GivesTheHeadAndPartOfValueAndDownMoreBitsInQ4KM) {
  const TypeMix mix("Q4_K_M");
  EXPECT_EQ(mix.type_for(tensor("output.weight", {1000, 2048}), 16, false), DType::q6_k);
  EXPECT_EQ(mix.type_for(tensor("token_embd.weight", {1000, 2048}), 16, false), DType::q4_k);
  EXPECT_EQ(mix.type_for(tensor("token_embd.weight", {1000, 2048}), 16, true), DType::q6_k);
  EXPECT_EQ(mix.type_for(tensor("blk.0.attn_v.weight", {512, 2048}), 16, false), DType::q6_k);
  EXPECT_EQ(mix.type_for(tensor("blk.2.attn_v.weight", {512, 2048}), 16, false), DType::q4_k);
  EXPECT_EQ(mix.type_for(tensor("blk.4.ffn_down.weight", {2048, 8192}), 16, false), DType::q6_k);
  EXPECT_EQ(mix.type_for(tensor("blk.4.ffn_up.weight", {8192, 2048}), 16, false), DType::q4_k);
}

TEST(TypeMix, GivesQ2KThreeBitsWhereTwoWouldBreakTheModel) {
  const TypeMix mix("q2_k");
  EXPECT_EQ(mix.type_for(tensor("blk.5.ffn_down.weight", {2048, 8192}), 16, false), DType::q3_k);
  EXPECT_EQ(mix.type_for(tensor("blk.5.attn_output.weight", {2048, 2048}), 16, false), DType::q3_k);
  EXPECT_EQ(mix.type_for(tensor("blk.5.ffn_up.weight", {8192, 2048}), 16, false), DType::q2_k);
}

TEST(TypeMix, KeepsVectorsAndRoutersInF32) {
  const TypeMix mix("q4_0");
  EXPECT_EQ(mix.type_for(tensor("blk.0.attn_norm.weight", {2048}), 16, false), DType::f32);
  EXPECT_EQ(mix.type_for(tensor("blk.0.ffn_gate_inp.weight", {8, 2048}), 16, false), DType::f32);
  EXPECT_EQ(mix.type_for(tensor("blk.0.ffn_up_exps.bias", {8, 2048}), 16, false), DType::f32);
}

TEST(TypeMix, FallsBackToShorterBlocksWhereRowsAreNotDivisible) {
  EXPECT_EQ(TypeMix("q4_k_s").type_for(tensor("blk.0.attn_q.weight", {576, 576}), 30, false), DType::q5_0);
  EXPECT_EQ(TypeMix("q6_k").type_for(tensor("blk.0.attn_q.weight", {576, 576}), 30, false), DType::q8_0);
  EXPECT_EQ(TypeMix("q4_0").type_for(tensor("blk.0.attn_q.weight", {20, 20}), 30, false), DType::f16);
}

TEST(TypeMix, LeavesExpertsTrainedInMxfp4AsTheyAre) {
  TensorEntry experts = tensor("blk.0.ffn_up_exps.weight", {4, 64, 64});
  experts.dtype = DType::mxfp4;
  EXPECT_EQ(TypeMix("q8_0").type_for(experts, 2, false), DType::mxfp4);
  EXPECT_EQ(TypeMix("f16").type_for(experts, 2, false), DType::f16);
}

TEST(TypeMix, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  try {
    TypeMix("q7_z");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("q4_k_m"), std::string::npos);
  }
}

}  // namespace
}  // namespace quire
