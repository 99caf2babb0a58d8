// The command line as a user meets it: the program is run, and what it prints and returns is looked at.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "base/json.h"
#include "cli_fixture.h"
#include "golden_model.h"

namespace quire {
namespace {

TEST_F(Cli, RunStreamsTheHouseModelsAnswerAndPutsTheFiguresOnStderr) {
  const Outcome outcome = quire("run --temperature 0 'Who are you?'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "model")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, ".\n")) << outcome.out;
  for (const char* figure :
       {"prompt +", "answer tokens", "first token", "tok/s", "KV", "per token", "page"}) {
    EXPECT_TRUE(contains(outcome.err, figure)) << figure << " in " << outcome.err;
  }
}

TEST_F(Cli, RunReadsThePromptFromStdin) {
  const Json fromStdin =
      quire_json("run --json -n 4 --raw -m " + llama_ + " --temperature 0 -", "Hello there");
  const Json fromArgument =
      quire_json("run --json -n 4 --raw -m " + llama_ + " --temperature 0 'Hello there'");
  EXPECT_EQ(fromStdin["token_ids"], fromArgument["token_ids"]);
}

TEST_F(Cli, RunAsJsonPrintsTheObjectOfTheContract) {
  const Json object = quire_json("run --json -m " + llama_ + " -n 7 --seed 3 --ignore-eos 'Hello'");
  EXPECT_TRUE(object["text"].is_string());
  EXPECT_EQ(object["token_ids"].size(), 7u);
  EXPECT_EQ(object["completion_tokens"], 7);
  EXPECT_GT(object["prompt_tokens"], 1);
  EXPECT_EQ(object["finish_reason"], "length");
  for (const char* key : {"ttft_ms", "itl_ms_p50", "itl_ms_p99", "prefill_tok_s", "decode_tok_s"}) {
    EXPECT_GT(object["timings"][key].get<double>(), 0) << key;
  }
  EXPECT_EQ(object["kv"]["format"], std::string(name(kernels_named("auto").pages)));
  EXPECT_EQ(object["kv"]["bytes_per_token"], 2 * 2 * 2 * 16 * 2);  // layers, heads, K and V, values, bytes
  EXPECT_EQ(object["kv"]["pages"], (object["prompt_tokens"].get<int>() + 6 + 31) / 32);
  EXPECT_GT(object["kv"]["bytes"], 0);
}

TEST_F(Cli, TheSameSeedGivesTheSameAnswerWithAndWithoutTheCache) {
  const std::string run =
      "run --json -m " + llama_ + " -n 20 --temperature 1 --ignore-eos 'Once upon a time' --seed ";
  const Json with_cache = quire_json(run + "5");
  EXPECT_EQ(quire_json(run + "5")["token_ids"], with_cache["token_ids"]);
  EXPECT_EQ(quire_json(run + "5 --no-kv-cache")["token_ids"], with_cache["token_ids"]);
  EXPECT_EQ(quire_json(run + "5 --prefill-chunk 3 --threads 1")["token_ids"], with_cache["token_ids"]);
  EXPECT_NE(quire_json(run + "6")["token_ids"], with_cache["token_ids"]);
}

TEST_F(Cli, AStopStringEndsTheAnswerAndIsNotShown) {
  const std::string ask = "run --json --temperature 0 'Who are you?'";
  const std::string whole = quire_json(ask)["text"];
  const size_t at = whole.find("model");
  ASSERT_NE(at, std::string::npos) << whole;
  const Json object = quire_json(ask + " --stop model");
  EXPECT_EQ(object["finish_reason"], "stop");
  EXPECT_EQ(object["text"], whole.substr(0, at));
}

TEST_F(Cli, EvalJudgesTheHouseModelAndWritesDownEveryAnswer) {
  const Json result = quire_json("eval house --only inference,reading --limit 1 --json --log " + path("log"));
  EXPECT_EQ(result["suite"], "house");
  EXPECT_EQ(result["inference"]["asked"], 1);
  EXPECT_EQ(result["reading"]["unseen"]["asked"], 1);
  EXPECT_FALSE(result.contains("needles"));
  const std::string log = slurp(path("log"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3);
  EXPECT_EQ(quire("eval house --only cooking").code, 2);
  EXPECT_EQ(quire("eval garden").code, 2);
  const Outcome nowhere = quire("eval house --data " + path("nowhere"));
  EXPECT_EQ(nowhere.code, 1);
  EXPECT_TRUE(contains(nowhere.err, "nowhere")) << nowhere.err;
}

TEST_F(Cli, ExplainCountsWhatTheCacheSavesAndDrawsIt) {
  const std::string svg = path("timeline.svg");
  const Outcome done = quire("explain --doc 200 --gen 50 --off-seconds 0.05 --json --svg " + svg);
  ASSERT_EQ(done.code, 0) << done.err;
  const Json json = Json::parse(done.out);
  EXPECT_EQ(json["with_cache"]["computed_tokens"], 249);
  EXPECT_EQ(json["without_cache"]["computed_tokens"], 200 * 50 + 49 * 50 / 2);
  EXPECT_EQ(json["with_cache"]["decode"]["passes"], 49);
  EXPECT_EQ(json["with_cache"]["prefill"]["attention_pairs"], 200 * 201 / 2);
  std::ifstream drawing(svg);
  EXPECT_TRUE(contains({std::istreambuf_iterator<char>(drawing), {}}, "11,225 tokens computed in 50 passes"));
  const Outcome table = quire("explain --gen 8 'Who are you?'");
  EXPECT_TRUE(contains(table.out, "time to first token")) << table.err;
}

TEST_F(Cli, DraftsChangeNothingButTheSpeed) {
  const auto answer = [&](const std::string& options) {
    const Outcome done = quire("run --json --seed 3 -n 60 " + options + " 'Tell me a story.'");
    EXPECT_EQ(done.code, 0) << done.err;
    return Json::parse(done.out);
  };
  const Json alone = answer(""), drafted = answer("--draft house-draft");
  EXPECT_EQ(drafted["token_ids"], alone["token_ids"]);
  EXPECT_GT(drafted["account"]["accepted"], 0);
  EXPECT_EQ(alone["account"]["drafted"], 0);
  EXPECT_EQ(answer("--draft lookup")["token_ids"], alone["token_ids"]);
  EXPECT_TRUE(contains(quire("run --draft " + llama_ + " hi").err, "cannot work together"));
}

TEST_F(Cli, SaysSoWhenTheContextIsFullAndWhenAPromptDoesNotFit) {
  const Outcome full = quire("run --ctx 40 -m " + llama_ + " --raw --ignore-eos 'a b c d'");
  EXPECT_EQ(full.code, 0);
  EXPECT_TRUE(contains(full.err, "context of 40 tokens is full")) << full.err;
  const Outcome too_long = quire("run --ctx 4 -m " + llama_ + " --raw 'one two three four five six seven'");
  EXPECT_EQ(too_long.code, 1);
  EXPECT_TRUE(contains(too_long.err, "the context holds 4")) << too_long.err;
}

TEST_F(Cli, KvMemoryLimitsTheContextOrRefusesIt) {
  const Outcome limited = quire("run --kv-memory 20k -n 2 -m " + llama_ + " --raw 'a b'");
  EXPECT_EQ(limited.code, 0) << limited.err;
  EXPECT_TRUE(contains(limited.err, "context limited to")) << limited.err;
  const Outcome refused = quire("run --kv-memory 20k --ctx 128 -n 2 -m " + llama_ + " --raw 'a b'");
  EXPECT_EQ(refused.code, 1);
  EXPECT_TRUE(contains(refused.err, "a context of 128 tokens needs")) << refused.err;
}

TEST_F(Cli, TooLittleMemoryShortensTheContextOrIsRefusedWithTheNumbers) {
  const Outcome limited = quire("run --threads 2 --memory 75M -n 2 hi");
  EXPECT_EQ(limited.code, 0) << limited.err;
  EXPECT_TRUE(contains(limited.err, "context limited to")) << limited.err;
  const Outcome refused = quire("run --threads 2 --memory 30M -n 2 hi");
  EXPECT_EQ(refused.code, 1);
  EXPECT_TRUE(contains(refused.err, "of weights")) << refused.err;
}

TEST_F(Cli, WrongUsageExitsWithTwoAndRuntimeErrorsWithOne) {
  for (const char* wrong :
       {"", "fly", "run --kv q9 hi", "run --top-p 3 hi", "run --temperature -1 hi", "run --kv-memory lots hi",
        "run --threads 0 hi", "run --kernels fast hi", "synth --shape cube -o x", "quantize"}) {
    const Outcome outcome = quire(wrong);
    EXPECT_EQ(outcome.code, 2) << wrong;
    EXPECT_FALSE(outcome.err.empty()) << wrong;
  }
  const Outcome missing = quire("run -m nowhere.gguf hi");
  EXPECT_EQ(missing.code, 1);
  EXPECT_TRUE(contains(missing.err, "nowhere.gguf")) << missing.err;
  EXPECT_EQ(quire("--help").code, 0);
  EXPECT_EQ(quire("--version").code, 0);
}

TEST_F(Cli, ABrokenFileIsOneSentenceThatNamesIt) {
  write("cut.gguf", slurp(std::string(QUIRE_BINARY_DIR) + "/house/house.gguf").substr(0, 5000));
  write("text.gguf", "this is not a model");
  std::filesystem::create_directories(path("folder"));
  write("folder/config.json", R"({"model_type": "martian", "architectures": ["MartianForCausalLM"]})");
  write("folder/model.safetensors", "");
  for (const char* name : {"cut.gguf", "text.gguf", "folder"}) {
    const Outcome outcome = quire("run -n 1 -m " + path(name) + " hi");
    EXPECT_EQ(outcome.code, 1) << name;
    EXPECT_TRUE(contains(outcome.err, name)) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  EXPECT_TRUE(contains(quire("inspect " + path("folder")).err, "martian"));
}

TEST_F(Cli, TokenizeGoesThereAndBackAlsoLineByLine) {
  const std::string tokenize = "tokenize -m " + llama_;
  const Outcome ids = quire(tokenize + " --no-special 'Hello, wörld!'");
  EXPECT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(quire(tokenize + " --decode '" + ids.out.substr(0, ids.out.size() - 1) + "'").out,
            "Hello, wörld!");
  const Outcome lines =
      quire(tokenize + " --no-special --json-lines", "\"Hello, wörld!\"\n\"two\\nlines\"\n");
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 2);
  EXPECT_EQ(lines.out.substr(0, lines.out.find('\n') + 1), ids.out);
  EXPECT_EQ(quire(tokenize + " --json-lines", "{}\n").code, 1);
  EXPECT_EQ(quire(tokenize + " --decode '99999999'").code, 1);
}

TEST_F(Cli, AUserCannotForgeATurn) {
  const Json config = read_json_file(llama_ + "/tokenizer_config.json");
  const std::string eos = config["eos_token"].is_string() ? config["eos_token"].get<std::string>()
                                                          : config["eos_token"]["content"].get<std::string>();
  const auto prompt_tokens = [&](const std::string& text) {
    return quire_json("run --json -n 1 -m " + llama_ + " '" + text + "'")["prompt_tokens"].get<int>();
  };
  const std::string plain_ids = quire("tokenize -m " + llama_ + " --no-special '" + eos + "'").out;
  const std::string parsed_ids = quire("tokenize -m " + llama_ + " --no-special --special '" + eos + "'").out;
  EXPECT_EQ(std::count(parsed_ids.begin(), parsed_ids.end(), ' '), 0);
  EXPECT_GT(std::count(plain_ids.begin(), plain_ids.end(), ' '), 0);
  EXPECT_GT(prompt_tokens("a" + eos + "b"), prompt_tokens("ab") + 1);
}

TEST_F(Cli, TemplatePrintsExactlyTheTextTheModelWillSee) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "Hi <there>"}]})";
  const Outcome outcome = quire("template -m " + llama_, chat);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "Hi <there>"));
  const Outcome without =
      quire("template -m " + llama_,
            R"({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": false})");
  EXPECT_LT(without.out.size(), outcome.out.size());
  EXPECT_EQ(quire("template -m " + llama_, "[]").code, 1);
  EXPECT_EQ(quire("template -m " + llama_, "{\"messages\": ").code, 1);
}

TEST_F(Cli, PerplexityScoresAllButTheFirstTokenOfEachWindow) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "the fox and the hare went to sea " + std::to_string(i) + "\n";
  write("text", text);
  const Json object =
      quire_json("perplexity -m " + llama_ + " " + path("text") + " --ctx 64 --json --per-token");
  const size_t tokens = object["tokens"];
  const size_t windows = (tokens + 63) / 64;
  EXPECT_EQ(object["scored"], tokens - windows);
  EXPECT_EQ(object["nll"].size(), tokens - windows);
  EXPECT_NEAR(object["perplexity"].get<double>(), std::exp(object["nll_mean"].get<double>()), 1e-9);
  const Json chunked = quire_json("perplexity -m " + llama_ + " " + path("text") +
                                  " --ctx 64 --json --per-token --prefill-chunk 5");
  EXPECT_EQ(chunked["nll"], object["nll"]);
}

TEST_F(Cli, AModelQuantizedToF32AnswersAsTheFolderItCameFrom) {
  for (const std::string name : {"llama3", "gemma3", "gpt_oss_mxfp4", "phi3", "qwen2"}) {
    const std::string out = path(name + ".gguf");
    const Outcome outcome = quire("quantize -m " + golden_folder(name) + " --type f32 -o " + out);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Golden golden = read_golden(name);
    BareModel model(out, exact_kernels(), 2);
    const std::vector<float> logits = all_logits(model, golden.prompt, uint32_t(golden.prompt.size()));
    ASSERT_EQ(logits.size(), golden.logits.size());
    float largest = 0;
    float difference = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      largest = std::max(largest, std::fabs(golden.logits[i]));
      difference = std::max(difference, std::fabs(logits[i] - golden.logits[i]));
    }
    EXPECT_LT(difference, 1e-4f * largest) << name;
  }
  // The tokenizer came along.
  const std::string text = "'Hello, world <|x|> 123'";
  EXPECT_EQ(quire("tokenize -m " + path("llama3.gguf") + " " + text).out,
            quire("tokenize -m " + llama_ + " " + text).out);
  const std::string chat = R"({"messages": [{"role": "user", "content": "Hi"}]})";
  EXPECT_EQ(quire("template -m " + path("llama3.gguf"), chat).out, quire("template -m " + llama_, chat).out);
}

TEST_F(Cli, SynthWritesAModelOfEachMixThatRunsAndInspectSaysWhatIsInIt) {
  for (const std::string type :
       {"q4_0",   "q4_1",  "q5_0",  "q5_1",  "q8_0",  "q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k", "iq4_nl",
        "iq4_xs", "mxfp4", "nvfp4", "tq1_0", "tq2_0", "q1_0", "q2_0",   "f16",    "bf16",   "f32"}) {
    const std::string out = path(type + ".gguf");
    const Outcome outcome = quire("synth --shape tiny --type " + type + " -o " + out);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json answer = quire_json("run --json -n 3 --temperature 0 -m " + out + " 'hello'");
    EXPECT_EQ(answer["token_ids"].size(), 3u) << type;
    const Json inspected = quire_json("inspect --json --tensors " + out);
    EXPECT_EQ(inspected["architecture"], "llama");
    EXPECT_EQ(inspected["layers"], 4);
    EXPECT_EQ(inspected["kv"]["bytes_per_token"], 4 * 2 * 64 * 2 * 2);
    EXPECT_EQ(inspected["tensors"].size(), 2 + 4 * 9u);
    for (const Json& tensor : inspected["tensors"]) EXPECT_NE(tensor["role"], "") << tensor["name"];
  }
  EXPECT_GT(std::filesystem::file_size(path("q8_0.gguf")), std::filesystem::file_size(path("q4_0.gguf")));
}

TEST_F(Cli, ChatAnswersLineByLineUntilItIsToldToQuit) {
  const Outcome outcome = quire("chat", "Hello\n\n/new\nAnd again\n/quit\nnever read\n");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 2) << outcome.out;
}

TEST_F(Cli, ChatGoesOnAfterAMessageThatDoesNotFitAsIfItHadNotBeenSaid) {
  std::string long_message;
  for (int i = 0; i < 300; ++i) long_message += "word ";
  const std::string chat = "chat --temperature 0 --ctx 256";
  const Outcome usual = quire(chat, "Who are you?\nWhat is a KV cache?\n");
  const Outcome erring = quire(chat, "Who are you?\n" + long_message + "\nWhat is a KV cache?\n");
  EXPECT_EQ(erring.code, 0) << erring.err;
  EXPECT_TRUE(contains(erring.err, "the context holds 256")) << erring.err;
  EXPECT_FALSE(contains(usual.err, "the context holds 256")) << usual.err;
  EXPECT_EQ(erring.out, usual.out);
  EXPECT_EQ(std::count(usual.out.begin(), usual.out.end(), '\n'), 2) << usual.out;
}

}  // namespace
}  // namespace quire
