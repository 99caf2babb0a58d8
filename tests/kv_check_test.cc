// What a KV format costs, measured by the program as a user runs it.
#include <gtest/gtest.h>

#include "backend/cpu/kernel_choice.h"
#include "cli_fixture.h"
#include "eval/kv_curve.h"

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

TEST_F(Cli, LayersMayHaveFormatsOfTheirOwnInEveryCommand) {
  const std::string formats = "int8,0-1:f16,last:k=f16,v=q4";
  // The house has 7 layers with 2 KV heads of 64.
  const int bytes = 2 * (2 * (128 + 128) + 4 * (66 + 66) + (128 + 40));
  const Json answer = quire_json("run --json -n 4 --temperature 0 --kv " + formats + " 'Who are you?'");
  EXPECT_EQ(answer["kv"]["bytes_per_token"], bytes);
  EXPECT_EQ(answer["kv"]["format"], formats);
  const Json drafted =
      quire_json("run --json -n 4 --temperature 0 --draft house-draft --kv " + formats + " 'Who are you?'");
  EXPECT_EQ(drafted["token_ids"], answer["token_ids"]);
  const Json plan = quire_json("inspect house --memory 1G --json --kv " + formats);
  EXPECT_EQ(plan["kv_formats"].back()["name"], formats);
  EXPECT_EQ(plan["kv_formats"].back()["bytes_per_token"], bytes);
  EXPECT_EQ(quire_json("kv-check --tokens 64 --ctx 64 --json --kv " + formats)["bytes_per_token"], bytes);
  EXPECT_EQ(quire("run -n 1 --kv int8,first:f16 hi").code, 2);
  const Outcome deep = quire("run -n 1 --kv int8,7:f16 hi");
  EXPECT_EQ(deep.code, 1);
  EXPECT_TRUE(contains(deep.err, "for layer 7, but the model has 7 layers")) << deep.err;
  const Outcome twice = quire("inspect house --kv int8,6:f16,last:q4");
  EXPECT_EQ(twice.code, 1);
  EXPECT_TRUE(contains(twice.err, "layer 6 is given a KV format twice")) << twice.err;
}

TEST_F(Cli, KvAutoTakesTheSmallestFormatThatIsHarmlessAndMeasuresWhatIsNotKnown) {
  const std::string model = path("model.gguf");
  std::filesystem::copy_file(std::string(QUIRE_BINARY_DIR) + "/house/house.gguf", model);
  write("model.gguf.kv-check.json",
        R"({"q4": {"verdict": "broken", "perplexity_loss": 0.2},
            "k=int8,v=q4": {"verdict": "noticeable", "perplexity_loss": 0.02}})");
  const std::string run = "run --json -n 2 --temperature 0 --kv auto -m " + model + " hi";
  const Json measured = quire_json(run);
  const std::string format = measured["kv"]["format"];
  EXPECT_TRUE(format == "int8" || format == name(kernels_named("auto").pages)) << format;
  EXPECT_TRUE(contains(slurp(path("err")), "measuring")) << slurp(path("err"));
  EXPECT_EQ(quire_json(run)["kv"]["format"], format);
  EXPECT_FALSE(contains(slurp(path("err")), "measuring")) << slurp(path("err"));

  const Outcome refused = quire("serve --port 0 --kv q4 -m " + model);
  EXPECT_EQ(refused.code, 1);
  EXPECT_TRUE(contains(refused.err, "--kv q4 breaks this model: perplexity +20.0 %")) << refused.err;

  write("model.gguf.kv-check.json", R"({"q4": {"verdict": "fine"}})");
  const Outcome nonsense = quire(run);
  EXPECT_EQ(nonsense.code, 1);
  EXPECT_TRUE(contains(nonsense.err, "does not say how well KV formats did")) << nonsense.err;
}

TEST_F(Cli, KvCheckRemembersItsVerdictIfAsked) {
  const std::string model = path("model.gguf");
  std::filesystem::copy_file(std::string(QUIRE_BINARY_DIR) + "/house/house.gguf", model);
  const Json result = quire_json("kv-check --kv fp8 --tokens 200 --ctx 128 --json -m " + model);
  EXPECT_FALSE(std::filesystem::exists(model + ".kv-check.json"));
  quire_json("kv-check --kv fp8 --tokens 200 --ctx 128 --json --remember -m " + model);
  const Json kept = parse_json(slurp(model + ".kv-check.json"), "the verdicts");
  EXPECT_EQ(kept["fp8"]["verdict"], result["verdict"]);
}

const char* const kCounting =
    " 'one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty twenty-one twenty-two twenty-three twenty-four'";

TEST_F(Cli, TheEvaluatorPoliciesFindTheirHeadsAtFirstUseAndKeepThemBesideTheModel) {
  const std::string model = path("model.gguf"), heads = model + ".kv-heads.json";
  std::filesystem::copy_file(std::string(QUIRE_BINARY_DIR) + "/house/draft.gguf", model);
  const std::string run =
      "run --json -n 2 --temperature 0 --raw --kv-keep 40 -m " + model + kCounting + " --kv-policy ";
  const Outcome first = quire(run + "evaluator");
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_TRUE(contains(first.err, "kept in " + heads)) << first.err;
  const Json found = parse_json(slurp(heads), "the heads");
  EXPECT_EQ(found["asked"], 50);
  EXPECT_EQ(found["layers"].size(), 2u) << "all layers are searched";
  const Json pruned = parse_json(first.out, "the answer");
  EXPECT_EQ(pruned["account"]["pruned_tokens"], pruned["prompt_tokens"].get<int>() - 40);
  EXPECT_EQ(pruned["kv"]["pages"], 2);
  for (const char* policy : {"evaluator", "evaluator-prompt"}) {
    const Outcome next = quire(run + policy);
    EXPECT_EQ(next.code, 0) << next.err;
    EXPECT_FALSE(contains(next.err, "finding")) << next.err;
    EXPECT_EQ(parse_json(next.out, "the answer")["account"]["pruned_tokens"],
              pruned["account"]["pruned_tokens"]);
  }
}

TEST_F(Cli, HeadsOfAnotherModelOrOfADamagedFileAreRefusedInASentence) {
  const std::string house = std::string(QUIRE_BINARY_DIR) + "/house/";
  const std::string model = path("model.gguf"), heads = "model.gguf.kv-heads.json";
  std::filesystem::copy_file(house + "draft.gguf", model);
  const auto refused_with = [&](const std::string& words) {
    const Outcome outcome =
        quire("run -n 2 --raw --kv-keep 40 --kv-policy evaluator -m " + model + kCounting);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_TRUE(contains(outcome.err, words)) << outcome.err;
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
  };
  write(heads, "{");
  refused_with("kv-heads.json");
  write(heads, R"({"heads": "all"})");
  refused_with("does not say which heads");
  write(heads, R"({"layer": 1, "heads": [1, 3], "prompts": 16})");
  refused_with("as this version writes it");
  const std::string of_house = slurp(house + "house.gguf.kv-heads.json");
  write(heads, of_house);
  refused_with("is of another model");
  std::string changed = slurp(house + "draft.gguf.kv-heads.json");
  write(heads, changed);
  EXPECT_EQ(quire("run -n 2 --raw --kv-keep 40 --kv-policy evaluator -m " + model + kCounting).code, 0);
  const size_t digit = changed.find("\"tokens\": 1024");
  ASSERT_NE(digit, std::string::npos);
  changed[digit + 10] = '2';
  write(heads, changed);
  refused_with("is damaged");
}

TEST_F(Cli, KvKeepAutoTakesWhatTheModelsCurveSays) {
  const std::string model = path("model.gguf");
  std::filesystem::copy_file(std::string(QUIRE_BINARY_DIR) + "/house/draft.gguf", model);
  const auto point = [](const char* format, std::optional<PruningPolicy> policy, double share, bool seen,
                        uint32_t kept) {
    return KvCurve::Point{format, policy, share, seen, {kept, kept}, (*format == 'f' ? 100 : 52) * share};
  };
  write_kv_curve(kv_curve_path(model),
                 {.tokens = 1024,
                  .asked = {50, 50},
                  .answered = {50, 50},
                  .points = {point("f16", {}, 1, true, 50), point("int8", {}, 1, true, 50),
                             point("int8", PruningPolicy::snap, 0.5, true, 49),
                             point("int8", PruningPolicy::streaming, 0.7, false, 50)}},
                 LoadedModel(model, LoadOptions{.threads = 1}));
  const std::string run =
      "run --json -n 2 --ignore-eos --temperature 0 --raw --kv-keep auto -m " + model + " ";
  std::string text;
  for (int i = 0; i < 80; ++i) text += "The clerk counted the lamps again. ";
  const Json seen = quire_json(run + "-", text + "What did the clerk count?");
  EXPECT_EQ(seen["kv"]["format"], "int8");
  EXPECT_EQ(seen["kv"]["choice"]["policy"], "snap");
  EXPECT_EQ(seen["kv"]["choice"]["keep"], 0.5);
  EXPECT_NEAR(seen["kv"]["choice"]["bytes"].get<double>(), 0.26, 1e-9);
  EXPECT_NEAR(seen["kv"]["choice"]["answers"].get<double>(), 0.98, 1e-9);
  EXPECT_GT(seen["account"]["pruned_tokens"].get<int>(), 200);
  EXPECT_EQ(quire_json(run + "-", text + "Then he slept.")["kv"]["choice"]["policy"], "streaming");
  EXPECT_FALSE(quire_json(run + "--kv-target 100% -", text + "What?")["kv"]["choice"].contains("policy"));
  write("document.txt", text);
  const Json document = quire_json(run + "--document " + path("document.txt") + " 'What?'");
  EXPECT_EQ(document["kv"]["choice"]["policy"], "streaming") << "nobody knows what a document will be asked";
  const Json judged =
      quire_json("eval house --json --only needles --limit 2 --needle-tokens 512 --kv-keep auto -m " + model);
  EXPECT_EQ(judged["kv"], "int8");
  EXPECT_EQ(judged["kv_policy"], "auto");
  EXPECT_EQ(judged["needles"][0]["asked"], 2);
}

TEST_F(Cli, ADocumentIsPrunedOnceAndItsFileIsBegunWith) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The clerk counted the lamps again. ";
  write("document.txt", text);
  const std::string kv = path("document.kv"),
                    ask =
                        "run --json -n 3 --temperature 0 --kv-keep 50% --kv-policy zip -m house-draft "
                        "--document " +
                        path("document.txt");
  const Json first = quire_json(ask + " --save-kv " + kv + " 'What did the clerk count?'");
  const std::string name = first["kv"]["document"];
  EXPECT_TRUE(name.starts_with("zip-")) << name;
  EXPECT_EQ(first["account"]["cached_tokens"], 0);
  const Json alone = quire_json(ask + " 'Who counted?'");
  const Json next = quire_json(ask + " --load-kv " + kv + " 'Who counted?'");
  EXPECT_EQ(next["kv"]["document"], name);
  EXPECT_EQ(next["token_ids"], alone["token_ids"]);
  EXPECT_GT(next["account"]["cached_tokens"].get<int>(), 300);
  EXPECT_EQ(quire("run -n 1 -m house-draft --document " + path("document.txt") + " Hi").code, 2);
  EXPECT_EQ(quire("run -n 1 -m house-draft --kv-keep 50% --document - -").code, 2);
}

TEST_F(Cli, TheHouseModelsHaveTheirHeadsWithThem) {
  for (const char* model : {"house", "house-draft"}) {
    const Outcome outcome = quire("run --json -n 2 --raw --kv-keep 40 --kv-policy evaluator -m " +
                                  std::string(model) + kCounting);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_FALSE(contains(outcome.err, "finding")) << outcome.err;
  }
}

}  // namespace
}  // namespace quire
