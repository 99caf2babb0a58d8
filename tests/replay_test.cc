// A server that records while several clients ask at once; then every answer again, alone.
#include <bit>
#include <thread>

#include "cli_fixture.h"
#include "engine/drafts/drafter.h"
#include "replay/replayer.h"
#include "server_fixture.h"

namespace quire {
namespace {

class Replay : public Cli {
 protected:
  static constexpr uint32_t kContext = 512;

  // Sixteen clients at once with little room: prefixes are shared, sequences preempted, tokens guessed.
  void record() {
    EngineOptions engine{.context = kContext, .max_sequences = 6, .prefill_chunk = 24};
    const KvLayout layout = make_kv_layout(kv_shapes(model_.spec(), engine.kv_formats));
    engine.kv_bytes = kv_bytes(layout, pages_for(layout, kContext, engine.prefill_chunk, 1));
    ServerOptions options = TestServer::server_options();
    options.grace_seconds = 30;
    options.service.api_keys = {"the secret of ann", "the secret of bob"};
    options.record.path = path_;
    options.model_path = llama_;
    Server server(model_,
                  std::make_unique<Engine>(model_.engine_model(), engine, std::make_unique<LookupDrafter>()),
                  "tiny", {}, options);
    std::thread serving([&] { server.run(); });
    std::vector<std::thread> clients;
    for (uint32_t c = 0; c < 16; ++c) clients.emplace_back([&, c] { ask(server.port(), c); });
    for (std::thread& client : clients) client.join();
    server.stop();
    serving.join();
  }
  static void ask(uint16_t port, uint32_t client) {
    Json body = {{"prompt", "Once upon a time there was a little dog who liked the number " +
                                std::to_string(client / 2)},
                 {"max_tokens", 24 + client},
                 {"seed", 100 + client},
                 {"ignore_eos", client % 3 != 0}};
    if (client % 2 == 1) body["temperature"] = 0;
    if (client % 4 == 0) body["n"] = 3;
    if (client % 5 == 0) body["frequency_penalty"] = 0.5;
    if (client % 7 == 0) body["logit_bias"] = {{"30", 2}, {"40", -3}};
    if (client % 8 == 3) body["stop"] = {"e"};
    HttpClient http(port);
    const std::string key = client % 2 == 0 ? "the secret of ann" : "the secret of bob";
    http.request("POST", "/v1/completions", body.dump(), "Authorization: Bearer " + key + "\r\n");
    const HttpReply reply = http.read_reply();
    EXPECT_EQ(reply.status, 200) << reply.body;
  }
  Engine engine_for(const Recording& recording, const LoadedModel& model) {
    const EngineOptions options{.context = recording.head.context};
    const KvLayout layout = make_kv_layout(kv_shapes(model.spec(), options.kv_formats));
    return Engine(model.engine_model(), replay_options(options, layout, longest_of(recording.answers)));
  }
  LoadedModel model_{golden_folder("llama3"), {.context = kContext, .threads = 1, .kernels = "auto"}};
  std::string path_ = path("recording");
};

TEST_F(Replay, GivesEveryAnswerOfACrowdedServerAgainBitByBit) {
  record();
  const Recording recording = read_recording_file(path_);
  EXPECT_EQ(recording.answers.size(), 16u + 2 * 4);
  EXPECT_EQ(recording.head.identity.model, model_.kv_identity().model);
  EXPECT_EQ(recording.head.identity.kernels, model_.kv_identity().kernels);
  EXPECT_EQ(recording.head.context, kContext);
  Engine engine = engine_for(recording, model_);
  size_t tokens = 0;
  for (const RecordedAnswer& answer : recording.answers) {
    const ReplayOutcome outcome = replay(engine, answer);
    EXPECT_TRUE(outcome.same()) << answer.id << " " << answer.index << " " << outcome.refused;
    tokens += answer.tokens.size();
  }
  EXPECT_GT(tokens, 400u);
  EXPECT_EQ(slurp(path_).find("secret"), std::string::npos) << "a key is never written down";
}

TEST_F(Replay, SeesALogProbabilityThatIsOneBitOff) {
  record();
  Recording recording = read_recording_file(path_);
  RecordedAnswer& answer = recording.answers.front();
  uint32_t bits = std::bit_cast<uint32_t>(answer.logprobs[2]);
  answer.logprobs[2] = std::bit_cast<float>(bits ^ 1);
  Engine engine = engine_for(recording, model_);
  const ReplayOutcome outcome = replay(engine, answer);
  EXPECT_FALSE(outcome.same());
  EXPECT_FALSE(outcome.token);
  ASSERT_TRUE(outcome.logprob);
  EXPECT_EQ(outcome.logprob->at, 2u);
  EXPECT_LT(outcome.largest_logprob_change, 1e-5);
}

TEST_F(Replay, SeesAnotherTokenAndAnAnswerThatEndsElsewhere) {
  record();
  const Recording recording = read_recording_file(path_);
  Engine engine = engine_for(recording, model_);
  RecordedAnswer other = recording.answers.front();
  other.tokens[1] = (other.tokens[1] + 1) % model_.spec().vocab;
  const ReplayOutcome outcome = replay(engine, other);
  ASSERT_TRUE(outcome.token);
  EXPECT_EQ(outcome.token->at, 1u);
  EXPECT_EQ(outcome.token->drawn, recording.answers.front().tokens[1]);
  RecordedAnswer shorter = recording.answers.front();
  shorter.tokens.pop_back();
  shorter.logprobs.pop_back();
  shorter.finish_reason = FinishReason::stop;
  const ReplayOutcome longer = replay(engine, shorter);
  ASSERT_TRUE(longer.token);
  EXPECT_EQ(longer.token->at, shorter.tokens.size());
  EXPECT_FALSE(longer.token->given);
}

TEST_F(Replay, ShowsWhereAnotherKernelSetPartsFromIt) {
  record();
  const Recording recording = read_recording_file(path_);
  const LoadedModel exact(golden_folder("llama3"), {.context = kContext, .threads = 1, .kernels = "exact"});
  Engine engine = engine_for(recording, exact);
  size_t differ = 0;
  for (const RecordedAnswer& answer : recording.answers) {
    const ReplayOutcome outcome = replay(engine, answer);
    EXPECT_EQ(outcome.refused, "");
    differ += outcome.same() ? 0 : 1;
  }
  EXPECT_EQ(differ,
            exact.kv_identity().kernels == recording.head.identity.kernels ? 0 : recording.answers.size());
}

TEST_F(Replay, AsACommandSaysThatAllIsTheSame) {
  record();
  const Outcome all = quire("replay " + path_ + " --threads 1");
  EXPECT_EQ(all.code, 0) << all.out << all.err;
  EXPECT_TRUE(contains(all.out, "24 of 24 answers")) << all.out;
  const Json told = quire_json("replay --json --no-kv-cache " + path_);
  EXPECT_EQ(told["answers"], 24);
  EXPECT_EQ(told["differ"], 0);
  const std::string id = told["results"][0]["id"];
  const Json one = quire_json("replay --json --request " + id + " " + path_);
  EXPECT_EQ(one["results"][0]["id"], id);
  EXPECT_LT(one["answers"], 4);
  const Json steps = quire_json("replay --json --view steps --request " + id + " " + path_);
  EXPECT_EQ(steps["view"], "steps");
  EXPECT_EQ(steps["answer_ids"].size(), told["results"][0]["tokens"]);
}

TEST_F(Replay, AsACommandSaysWhatIsDamagedCutOrUnknown) {
  record();
  std::string bytes = slurp(path_);
  bytes[bytes.size() - 40] = char(bytes[bytes.size() - 40] ^ 1);  // a log-probability of the last answer
  write("changed", bytes + "the beginning of one more");
  const Outcome changed = quire("replay " + path("changed"));
  EXPECT_EQ(changed.code, 1);
  EXPECT_TRUE(contains(changed.out, "part 24 of the file is damaged")) << changed.out;
  EXPECT_TRUE(contains(changed.out, "not written to its end")) << changed.out;
  EXPECT_TRUE(contains(changed.out, "23 of 23 answers")) << changed.out;
  EXPECT_EQ(quire("replay --request nobody " + path_).code, 1);
  EXPECT_EQ(quire("replay " + path("in")).code, 1);
  EXPECT_EQ(quire("replay -m house " + path_).code, 1) << "another model";
}

}  // namespace
}  // namespace quire
