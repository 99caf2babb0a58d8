// `quire bench`: what it prints and draws. How fast anything is, no test asks.
#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli_fixture.h"

namespace quire {
namespace {

class BenchCommand : public Cli {
 protected:
  static constexpr const char* kQuick = " --threads 2 --seconds 0.001 ";
};

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// What is wrong with the nesting of tags, or nothing. Enough XML for what the program writes.
std::optional<std::string> problem_of_xml(const std::string& text) {
  std::vector<std::string> open;
  size_t elements = 0;
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    const size_t end = text.find('>', at);
    if (end == std::string::npos || text.find('<', at + 1) < end) return "a tag does not end";
    const std::string tag = text.substr(at + 1, end - at - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0) return "a quote is open in <" + tag + ">";
    const std::string element = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.front() == '/') {
      if (open.empty() || "/" + open.back() != tag) return "<" + tag + "> closes nothing";
      open.pop_back();
    } else {
      if (open.empty() && elements > 0) return "there are two roots";
      ++elements;
      if (tag.back() != '/') open.push_back(element);
    }
    at = end;
  }
  for (size_t at = 0; (at = text.find('&', at)) != std::string::npos; ++at) {
    const std::string rest = text.substr(at, 5);
    if (!rest.starts_with("&amp;") && !rest.starts_with("&lt;") && !rest.starts_with("&gt;"))
      return "a bare &";
  }
  return open.empty() ? std::nullopt : std::optional("<" + open.back() + "> is not closed");
}

TEST_F(BenchCommand, PrintsTheObjectOfTheContract) {
  const Json object =
      quire_json("bench -m " + llama_ + kQuick + "--prompt 16,40 --gen 4 --batch 1,3 --depth 0,64 --json");
  for (const char* key : {"read_gb_s", "int8_gops", "f32_gflops", "bf16_gflops"}) {
    EXPECT_GT(object["machine"][key].get<double>(), 0) << key;
  }
  for (const char* key : {"read_method", "int8_instruction", "f32_instruction", "bf16_instruction"}) {
    EXPECT_FALSE(object["machine"][key].get<std::string>().empty()) << key;
  }
  EXPECT_EQ(object["machine"]["threads"], 2);
  EXPECT_EQ(object["model"], "llama3");
  EXPECT_EQ(object["kv"]["bytes_per_token"], 2 * 2 * 2 * 16 * 2);  // layers, heads, K and V, values, bytes
  EXPECT_GT(object["weight_bytes"], 0);

  struct Expected {
    const char* phase;
    int tokens, batch, depth;
  };
  const Expected expected[] = {{"prefill", 16, 1, 0}, {"prefill", 40, 1, 0}, {"decode", 4, 1, 0},
                               {"decode", 4, 3, 0},   {"decode", 4, 1, 64},  {"decode", 4, 3, 64}};
  ASSERT_EQ(object["results"].size(), std::size(expected));
  for (size_t i = 0; i < std::size(expected); ++i) {
    const Json& result = object["results"][i];
    EXPECT_EQ(result["phase"], expected[i].phase);
    EXPECT_EQ(result["tokens"], expected[i].tokens);
    EXPECT_EQ(result["batch"], expected[i].batch);
    EXPECT_EQ(result["depth"], expected[i].depth);
    EXPECT_GT(result["tok_s"].get<double>(), 0);
    EXPECT_GT(result["share"].get<double>(), 0);
    EXPECT_LE(result["share"].get<double>(), 1);
    EXPECT_TRUE(result["bound"] == "memory" || result["bound"] == "compute") << result["bound"];
    EXPECT_TRUE(result["steady"].is_boolean());
    const double compute = result["compute_share"];
    const double memory = result["memory_share"];
    const bool single = expected[i].phase == std::string("decode") && expected[i].batch == 1;
    EXPECT_DOUBLE_EQ(result["share"], std::min(1.0, single ? memory : std::max(compute, memory)));
  }
  // A longer prompt reads the weights no more often; a deeper cache is read as well.
  EXPECT_GT(object["results"][1]["ops_per_byte"], object["results"][0]["ops_per_byte"]);
  EXPECT_GT(object["results"][3]["ops_per_byte"], object["results"][2]["ops_per_byte"]);
}

TEST_F(BenchCommand, RunsWindowsExpertsAndLearnedPositionsToTheEndOfTheContext) {
  for (const std::string name : {"gemma3", "mixtral", "gpt2", "gpt_oss"}) {
    const std::string model = golden_folder(name);
    const int context = quire_json("inspect --json " + model)["context"];
    const Json object = quire_json(
        fmt::format("bench -m {}{}--prompt {} --gen 3 --batch 2 --depth {} --prefill-chunk 7 --kv f32 --json",
                    model, kQuick, context, context - 3));
    ASSERT_EQ(object["results"].size(), 2u) << name;
    EXPECT_EQ(object["results"][0]["tokens"], context);
    EXPECT_EQ(object["results"][1]["depth"], context - 3);
  }
}

TEST_F(BenchCommand, PrintsATableForPeople) {
  const Outcome outcome = quire("bench -m " + llama_ + kQuick + "--prompt 8 --gen 2 --batch 1");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"llama3: ", "2 threads", "machine: reads ", "phase ", "prefill ", "decode ", " %"}) {
    EXPECT_TRUE(contains(outcome.out, part)) << part << " in " << outcome.out;
  }
}

TEST_F(BenchCommand, DrawsARooflineThatHoldsEveryPoint) {
  std::filesystem::create_directories(path("a&b"));
  for (const auto& entry : std::filesystem::directory_iterator(llama_)) {
    std::filesystem::copy(entry.path(), path("a&b/" + entry.path().filename().string()));
  }
  const Json object = quire_json("bench -m '" + path("a&b") + "'" + kQuick +
                                 "--prompt 16,16,40 --gen 2 --batch 1,2 --json --svg " + path("roof.svg"));
  const std::string svg = slurp(path("roof.svg"));
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"")) << svg.substr(0, 100);
  EXPECT_EQ(problem_of_xml(svg), std::nullopt);
  EXPECT_EQ(count_of(svg, "class=\"point "), object["results"].size());
  EXPECT_EQ(count_of(svg, "<circle class=\"point "), 3u);  // prefill
  EXPECT_TRUE(contains(svg, "a&amp;b"));
  EXPECT_TRUE(contains(svg, "prefers-color-scheme"));
  for (const char* label :
       {"1. prefill 16", "3. prefill 40", "5. decode 2, batch 2, depth 0", "GB/s", "GOPS"}) {
    EXPECT_TRUE(contains(svg, label)) << label;
  }
  EXPECT_FALSE(contains(svg, "nan") || contains(svg, "inf"));
}

TEST_F(BenchCommand, SaysWhatAMillionTokensCost) {
  const std::string bench = "bench -m " + llama_ + kQuick + "--prompt 8 --gen 2 --batch 1 ";
  const Json object = quire_json(bench + "--cost 3.6 --json");
  for (const Json& result : object["results"])
    EXPECT_DOUBLE_EQ(result["cost_of_million"].get<double>() * result["tok_s"].get<double>(), 1000.0);
  const Outcome table = quire(bench + "--cost 3.6");
  EXPECT_TRUE(contains(table.out, "a million tokens cost at 3.6 an hour")) << table.out;
  const Outcome plain = quire(bench);
  EXPECT_FALSE(contains(plain.out, "million")) << plain.out;
}

TEST_F(BenchCommand, WhatIsNotMeasuredIsLeftOut) {
  EXPECT_EQ(
      quire_json("bench -m " + llama_ + kQuick + "--prompt 0 --gen 2 --batch 1 --json")["results"].size(),
      1u);
  EXPECT_EQ(quire_json("bench -m " + llama_ + kQuick + "--prompt 4 --gen 0 --json")["results"].size(), 1u);
}

TEST_F(BenchCommand, SaysWhatIsWrongWithTheUsage) {
  const std::string model = " -m " + llama_;
  for (const auto& [wrong, words] : std::vector<std::pair<std::string, std::string>>{
           {"--kv q9", "'q9' is not a KV format"},
           {"--prompt 0 --gen 0", "nothing to measure"},
           {"--prompt 100000", "more than the model's context of 128"},
           {"--depth 125 --gen 4", "more than the model's context of 128"},
           {"--batch 0", "--batch"},
           {"--batch one", "--batch"},
           {"--gen -1", "--gen"},
           {"--threads 0", "--threads"},
           {"--kernels fast", "--kernels"},
           {"--seconds 0", "--seconds"},
           {"--cost 0", "--cost"}}) {
    const Outcome outcome = quire("bench" + model + " " + wrong);
    EXPECT_EQ(outcome.code, 2) << wrong;
    EXPECT_TRUE(contains(outcome.err, words)) << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  }
  const Outcome nowhere = quire("bench" + model + " --svg " + path("no/such/folder.svg"));
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_TRUE(contains(nowhere.err, "cannot write")) << nowhere.err;
}

}  // namespace
}  // namespace quire
