// What a KV format costs, measured by the program as a user runs it.
#include <gtest/gtest.h>

#include "cli_fixture.h"

namespace quire {
namespace {

TEST_F(Cli, KvCheckComparesAFormatWithSixteenBitsAndGivesAVerdict) {
  const Json good = quire_json("kv-check --kv int8 --tokens 400 --ctx 256 --json --svg " + path("plot.svg"));
  EXPECT_EQ(good["tokens"], 398);  // the last token of a window predicts nothing
  EXPECT_LT(good["bytes_per_token"], good["bytes_per_token_f16"].get<double>() * 0.53);
  EXPECT_LT(good["divergence_mean"], 0.05);
  EXPECT_GT(good["agreement"], 0.9);
  EXPECT_EQ(good["by_position"].size(), 8u);
  EXPECT_NE(good["verdict"], "broken");
  EXPECT_TRUE(contains(slurp(path("plot.svg")), "</svg>"));

  const Json same = quire_json("kv-check --kv f16 --tokens 200 --ctx 128 --json");
  EXPECT_EQ(same["divergence_mean"], 0.0);
  EXPECT_EQ(same["agreement"], 1.0);
  EXPECT_EQ(same["verdict"], "same");

  const Outcome words = quire("kv-check --kv k=int8,v=q4 --tokens 200 --ctx 128");
  EXPECT_EQ(words.code, 0) << words.err;
  EXPECT_TRUE(contains(words.out, "likeliest token")) << words.out;
}

TEST_F(Cli, AnAnswerSaysItsKvFormatAndUnknownOnesAreWrongUsage) {
  const Json object = quire_json("run --json -n 4 --temperature 0 --kv k=int8,v=q4 'Who are you?'");
  EXPECT_EQ(object["kv"]["format"], "k=int8,v=q4");
  EXPECT_EQ(object["kv"]["bytes_per_token"], 7 * 2 * ((64 + 2) + (32 + 8)));  // layers, heads, keys, values
  EXPECT_EQ(quire("run --kv int3 'Who are you?'").code, 2);
  EXPECT_EQ(quire("run --kv k=int8 'Who are you?'").code, 2);
}

}  // namespace
}  // namespace quire
