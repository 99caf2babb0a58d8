#include "kv/layout/kv_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

using testing::HasSubstr;
constexpr KvFormat f16 = KvFormat::f16, int8 = KvFormat::int8, q4 = KvFormat::q4;

std::vector<KvFormatPair> layers(const std::string& text, size_t count) {
  return KvFormats::parse(text).of_layers(count);
}

std::string refusal(const std::string& text, size_t count = 4) {
  try {
    layers(text, count);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(KvFormats, OneFormatIsForAllLayersAndKeysAndValuesMayDiffer) {
  EXPECT_EQ(layers("int8", 2), (std::vector<KvFormatPair>{{int8, int8}, {int8, int8}}));
  EXPECT_EQ(layers("k=int8,v=q4", 1), (std::vector<KvFormatPair>{{int8, q4}}));
  EXPECT_EQ(layers("v=q4,k=int8", 1), (std::vector<KvFormatPair>{{int8, q4}}));
  EXPECT_EQ(KvFormats::parse("q4").only(), q4);
  EXPECT_FALSE(KvFormats::parse("k=int8,v=q4").only().has_value());
  EXPECT_FALSE(KvFormats::parse("int8,0:f16").only().has_value());
}

TEST(KvFormats, LayersThatAreNamedHaveTheirOwn) {
  EXPECT_EQ(layers("int8,0-1:f16,last:k=f16,v=q4", 4),
            (std::vector<KvFormatPair>{{f16, f16}, {f16, f16}, {int8, int8}, {f16, q4}}));
  EXPECT_EQ(layers("int8,2:v=q4", 3), (std::vector<KvFormatPair>{{int8, int8}, {int8, int8}, {int8, q4}}))
      << "what is not said is as in the others";
  EXPECT_EQ(layers("1-last:q4", 3), (std::vector<KvFormatPair>{{f16, f16}, {q4, q4}, {q4, q4}}));
  EXPECT_EQ(layers("q4,last:f16", 1), (std::vector<KvFormatPair>{{f16, f16}}));
  EXPECT_EQ(KvFormats::parse("q4,0:f16").rest(), (KvFormatPair{q4, q4}));
}

TEST(KvFormats, WhatCannotBeMeantIsRefusedWithASentence) {
  EXPECT_THAT(refusal("q5"), HasSubstr("'q5' is not a KV format"));
  EXPECT_THAT(refusal("k=int8"), HasSubstr("not of both"));
  EXPECT_THAT(refusal(""), HasSubstr("empty part"));
  EXPECT_THAT(refusal("int8,"), HasSubstr("empty part"));
  EXPECT_THAT(refusal("int8,,0:f16"), HasSubstr("empty part"));
  EXPECT_THAT(refusal("int8,0:"), HasSubstr("'' is not a KV format"));
  EXPECT_THAT(refusal("int8,:f16"), HasSubstr("'' is no layer"));
  EXPECT_THAT(refusal("int8,-1:f16"), HasSubstr("'' is no layer"));
  EXPECT_THAT(refusal("int8,1-:f16"), HasSubstr("'' is no layer"));
  EXPECT_THAT(refusal("int8,first:f16"), HasSubstr("'first' is no layer"));
  EXPECT_THAT(refusal("int8,+1:f16"), HasSubstr("'+1' is no layer"));
  EXPECT_THAT(refusal("int8,4294967295:f16"), HasSubstr("is no layer"));
  EXPECT_THAT(refusal("int8,99999999999999999999:f16"), HasSubstr("is no layer"));
  EXPECT_THAT(refusal("int8,1-2-3:f16"), HasSubstr("'2-3' is no layer"));
  EXPECT_THAT(refusal("int8,3-1:f16"), HasSubstr("the first comes after the last"));
  EXPECT_THAT(refusal("int8,last-1:f16"), HasSubstr("the first comes after the last"));
  EXPECT_THAT(refusal("0:f16,int8"), HasSubstr("what is for all others comes first"));
  EXPECT_THAT(refusal("int8,q4"), HasSubstr("comes after another for the same layers"));
  EXPECT_THAT(refusal("k=int8,v=q4,k=f16"), HasSubstr("comes after another for the same layers"));
  EXPECT_THAT(refusal("int8,0:f16,k=q4"), HasSubstr("comes after another for the same layers"));
  EXPECT_THAT(refusal("int8,4:f16"), HasSubstr("for layer 4, but the model has 4 layers"));
  EXPECT_THAT(refusal("int8,2-4000000000:f16"), HasSubstr("for layer 4000000000"));
  EXPECT_THAT(refusal("int8,0-2:f16,1:q4"), HasSubstr("layer 1 is given a KV format twice"));
  EXPECT_THAT(refusal("int8,3:f16,last:q4"), HasSubstr("layer 3 is given a KV format twice"));
  EXPECT_EQ(refusal("int8,3:f16,last:q4", 5), "") << "in a model where they are two";
}

TEST(KvFormats, ADescriptionIsReadBackAsWhatItDescribes) {
  for (const char* text :
       {"int8", "k=int8,v=q4", "int8,0-1:f16,3:k=f16,v=q4", "q4,2:bf16", "f16,0:q4,1:int8"}) {
    EXPECT_EQ(describe_formats(layers(text, 6)), text);
  }
  EXPECT_EQ(describe_formats(layers("f16,1-last:q4", 4)), "q4,0:f16") << "most layers come first";
}

}  // namespace
}  // namespace quire
