// The KV cache and the requests, seen and steered through the API.
#include <algorithm>
#include <set>
#include <sstream>

#include "server_fixture.h"

namespace quire {
namespace {

class ServerCache : public ServerTest {
 protected:
  // A prompt of so many tokens that no other begins like.
  std::vector<TokenId> prompt(uint32_t first, uint32_t tokens) {
    std::vector<TokenId> ids = {1, 10 + first};
    while (ids.size() < tokens) ids.push_back(TokenId(4 + (ids.size() * 7 + first) % 300));
    return ids;
  }
  // Of so many tokens of an answer: as good as their ids, which the API does not tell.
  std::vector<double> logprobs_of(const Json& response, size_t first, size_t count) {
    const auto all = response["choices"][0]["logprobs"]["token_logprobs"].get<std::vector<double>>();
    EXPECT_GE(all.size(), first + count);
    return {all.begin() + ptrdiff_t(first), all.begin() + ptrdiff_t(std::min(all.size(), first + count))};
  }
  void check_counts(const Json& kv) {
    for (const Json& group : kv["groups"]) {
      const auto count = [&](const char* name) { return group[name].get<size_t>(); };
      EXPECT_EQ(count("held") + count("cached") + count("free"), count("pages"));
      EXPECT_EQ(group["map"].size(), count("held") + count("cached"));
      std::set<uint32_t> pages;
      size_t held = 0;
      for (const Json& page : group["map"]) {
        pages.insert(page["page"].get<uint32_t>());
        held += page["state"] == "held" ? 1 : 0;
        EXPECT_EQ(page["state"] == "held", page["shares"].get<int>() > 0);
        EXPECT_LE(page["tokens"], kv["page_tokens"]);
        EXPECT_LT(page["page"], group["pages"]);
      }
      EXPECT_EQ(pages.size(), group["map"].size());
      EXPECT_EQ(held, count("held"));
      EXPECT_EQ(kv["held_bytes"], held * count("page_bytes"));
    }
  }
};

TEST_F(ServerCache, EveryPageIsHeldCachedOrFree) {
  const Json empty = good(get("/kv"));
  check_counts(empty);
  EXPECT_EQ(empty["groups"][0]["free"], empty["groups"][0]["pages"]);
  EXPECT_EQ(empty["format"], "f16");
  complete({{"max_tokens", 5}}, prompt(1, 100));
  const Json after = good(get("/kv"));
  check_counts(after);
  EXPECT_EQ(after["groups"][0]["held"], 0);
  EXPECT_GE(after["groups"][0]["cached"], 4);
  EXPECT_EQ(after["events"]["counts"]["evicted"], 0);
  EXPECT_EQ(after["events"]["last"].size(), after["events"]["total"]);

  const Running running = start_endless({}, prompt(1, 100));
  const Json live = wait_until("/kv", [](const Json& kv) { return kv["groups"][0]["held"] > 5; });
  check_counts(live);
  size_t of_it = 0;
  for (const Json& page : live["groups"][0]["map"])
    of_it += page["requests"] == Json::array({running.id}) ? 1 : 0;
  EXPECT_EQ(of_it, live["groups"][0]["held"]);
  const uint64_t seen = live["events"]["total"];
  const Json newer = good(get("/kv?since=" + std::to_string(seen)));
  for (const Json& event : newer["events"]["last"]) EXPECT_GE(event["n"], seen);
}

TEST_F(ServerCache, LookingUpSaysHowMuchIsCachedAndWhereItParts) {
  std::vector<TokenId> tokens = prompt(2, 100);
  const Json before = good(post("/kv/lookup", {{"prompt", tokens}}));
  EXPECT_EQ(before["prompt_tokens"], 100);
  EXPECT_EQ(before["cached_tokens"], 0);
  EXPECT_EQ(before["computed_tokens"], 100);
  complete({{"max_tokens", 1}}, tokens);
  const Json same = good(post("/kv/lookup", {{"prompt", tokens}}));
  EXPECT_EQ(same["cached_tokens"], 99);
  EXPECT_TRUE(same["diverges_at"].is_null());
  EXPECT_GT(same["predicted_ttft_ms"], 0);

  tokens[70] = tokens[70] == 50 ? 51 : 50;
  const Json other = good(post("/kv/lookup", {{"prompt", tokens}}));
  EXPECT_EQ(other["diverges_at"], 70);
  EXPECT_EQ(other["cached_tokens"], 70);
  EXPECT_NE(other["diverges_text"].get<std::string>().find('|'), std::string::npos);
  // And so it comes.
  EXPECT_EQ(complete({{"max_tokens", 1}}, tokens)["usage"]["prompt_tokens_details"]["cached_tokens"], 70);
  EXPECT_EQ(good(post("/kv/lookup", {{"prompt", Json::array()}}))["prompt_tokens"], 0);
  const Json chat_prompt = {{{"role", "user"}, {"content", "Hello"}}};
  EXPECT_GT(good(post("/kv/lookup", {{"messages", chat_prompt}}))["prompt_tokens"], 3);
}

TEST_F(ServerCache, WhatIsPinnedSurvivesAndTheRestIsEvicted) {
  EngineOptions engine = TestServer::engine_options();
  engine.context = 256;
  engine.kv_bytes = 24 * 32 * 256;  // 24 pages
  serve(TestServer::server_options(), engine);
  const auto cached = [&](const std::vector<TokenId>& tokens) {
    return good(post("/kv/lookup", {{"prompt", tokens}}))["cached_tokens"].get<int>();
  };
  EXPECT_EQ(post("/kv/pin", {{"prompt", prompt(0, 100)}}).status, 409);  // nothing of it is there yet
  complete({{"max_tokens", 1}}, prompt(0, 100));
  complete({{"max_tokens", 1}}, prompt(1, 100));
  const Json pinned = good(post("/kv/pin", {{"prompt", prompt(0, 100)}}));
  EXPECT_EQ(pinned["tokens"], 96);  // the full pages
  const Json kv = good(get("/kv"));
  check_counts(kv);
  EXPECT_EQ(kv["pins"], Json::array({pinned}));
  for (uint32_t i = 2; i < 12; ++i) complete({{"max_tokens", 1}}, prompt(i, 120));
  EXPECT_LT(cached(prompt(1, 100)), 32);
  EXPECT_GE(cached(prompt(0, 100)), 96);

  const std::string pin = std::to_string(pinned["pin"].get<int>());
  EXPECT_EQ(ask("DELETE", "/kv/pin/" + pin + "x").status, 404);
  EXPECT_EQ(ask("DELETE", "/kv/pin/99999999999999").status, 404);
  EXPECT_EQ(ask("DELETE", "/kv/pin/" + pin).status, 200);
  EXPECT_EQ(ask("DELETE", "/kv/pin/" + pin).status, 404);
  for (uint32_t i = 12; i < 22; ++i) complete({{"max_tokens", 1}}, prompt(i, 120));
  EXPECT_LT(cached(prompt(0, 100)), 96);
  check_counts(good(get("/kv")));
}

TEST_F(ServerCache, ARequestForWhichThePinsLeaveNoRoomIsToldSo) {
  EngineOptions engine = TestServer::engine_options();
  engine.context = 256;
  engine.kv_bytes = 9 * 32 * 256;
  serve(TestServer::server_options(), engine);
  complete({{"max_tokens", 1}}, prompt(0, 200));
  const Json pinned = good(post("/kv/pin", {{"prompt", prompt(0, 200)}}));
  const HttpReply full = post("/v1/completions", {{"prompt", prompt(1, 200)}});
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.error("code"), "no_room");
  ask("DELETE", "/kv/pin/" + std::to_string(pinned["pin"].get<int>()));
  complete({{"max_tokens", 1}}, prompt(1, 200));
}

TEST_F(ServerCache, AForkOfAFinishedRequestGoesOnLikeTheSameTokens) {
  const Json fields = {
      {"max_tokens", 20}, {"temperature", 0.9}, {"seed", 3}, {"ignore_eos", true}, {"logprobs", 0}};
  const std::vector<TokenId> tokens = prompt(4, 50);
  const Json first = complete(fields, tokens);
  const std::string fork = "/requests/" + first["id"].get<std::string>() + "/fork";
  Json other = {{"max_tokens", 15}, {"temperature", 0.9}, {"seed", 4}, {"ignore_eos", true}, {"at", 40}};
  const Json forked = good(post(fork, other));
  const Json asked = complete(other, std::vector<TokenId>(tokens.begin(), tokens.begin() + 40));
  EXPECT_EQ(text_of(forked), text_of(asked));
  EXPECT_EQ(forked["usage"]["prompt_tokens"], 40);
  EXPECT_GT(forked["usage"]["prompt_tokens_details"]["cached_tokens"], 30);
  EXPECT_NE(forked["id"], first["id"]);
  other["at"] = 60;  // ten tokens into the answer, with its own seed: the rest comes again, to the last bit
  other["seed"] = 3;
  other["logprobs"] = 0;
  const Json rest = good(post(fork, other));
  EXPECT_EQ(logprobs_of(rest, 0, 10), logprobs_of(first, 10, 10));
  other["stream"] = true;
  EXPECT_EQ(stream(fork, other).text(), text_of(rest));

  other["at"] = 71;
  EXPECT_EQ(post(fork, other).status, 400);
  other["at"] = 0;
  EXPECT_EQ(post(fork, other).error("param"), "at");
  other.erase("at");
  EXPECT_EQ(post(fork, other).error("param"), "at");
  EXPECT_EQ(post(fork, {{"at", 3}, {"n", 2}}).error("param"), "n");
  EXPECT_EQ(post(fork, {{"at", 3}, {"choice", 1}}).status, 404);
  EXPECT_EQ(post("/requests/cmpl-0/fork", {{"at", 3}}).status, 404);
  EXPECT_EQ(post("/requests/cmpl-0", {{"at", 3}}).status, 404);
}

TEST_F(ServerCache, AForkOfARunningRequestGoesOnLikeTheSameTokens) {
  const std::vector<TokenId> tokens = prompt(5, 70);
  const Running running = start_endless({{"temperature", 0}}, tokens);
  Json fields = {{"max_tokens", 15}, {"temperature", 0.9}, {"seed", 4}, {"ignore_eos", true}, {"at", 50}};
  const std::string fork = "/requests/" + running.id + "/fork";
  const Json forked = good(post(fork, fields));
  EXPECT_EQ(text_of(forked),
            text_of(complete(fields, std::vector<TokenId>(tokens.begin(), tokens.begin() + 50))));
  // Five tokens into its answer.
  const Json greedy = {{"max_tokens", 20}, {"temperature", 0}, {"ignore_eos", true}, {"logprobs", 0}};
  Json inside = greedy;
  inside["at"] = 75;
  EXPECT_EQ(logprobs_of(good(post(fork, inside)), 0, 15), logprobs_of(complete(greedy, tokens), 5, 15));
  fields["at"] = TestServer::kContext - 1;
  EXPECT_EQ(post(fork, fields).status, 400);
  check_counts(good(get("/kv")));
}

TEST_F(ServerCache, RequestsAreSeenWhileTheyRunAndAfterwards) {
  const Json done = complete({{"max_tokens", 3}, {"ignore_eos", true}, {"user", "ann"}}, prompt(6, 40));
  const Running running = start_endless({{"user", "bob"}}, prompt(6, 45));
  const Json state =
      wait_until("/requests", [](const Json& s) { return s["requests"][0]["answer_tokens"] > 3; });
  EXPECT_EQ(state["running"], 1);
  EXPECT_EQ(state["waiting"], 0);
  ASSERT_EQ(state["requests"].size(), 2u);
  const Json &live = state["requests"][0], &old = state["requests"][1];
  EXPECT_EQ(live["id"], running.id);
  EXPECT_EQ(live["state"], "decode");
  EXPECT_EQ(live["client"], "bob");
  EXPECT_EQ(live["prompt_tokens"], 45);
  EXPECT_EQ(live["cached_tokens"], 40);
  EXPECT_TRUE(live["finish_reason"].is_null());
  EXPECT_EQ(live["token_ms"].size(), std::min<size_t>(512, live["answer_tokens"].get<size_t>()));
  EXPECT_TRUE(std::ranges::is_sorted(live["token_ms"]));
  EXPECT_GE(live["kv_pages"], 2);
  EXPECT_EQ(old["id"], done["id"]);
  EXPECT_EQ(old["state"], "finished");
  EXPECT_EQ(old["finish_reason"], "length");
  EXPECT_EQ(old["answer_tokens"], 3);
  EXPECT_TRUE(old["token_ms"].size() == 3 || old["token_ms"].empty());  // those of long ago are left out
  EXPECT_GT(old["finished_ms"], old["submitted_ms"]);
  EXPECT_GT(state["steps"]["total"], 3);
  const uint64_t seen = state["steps"]["total"];
  const Json newer = good(get("/requests?since=" + std::to_string(seen)));
  for (const Json& step : newer["steps"]["last"]) EXPECT_GE(step["n"], seen);
  EXPECT_EQ(newer["machine"]["read_gb_s"], 10);
}

TEST_F(ServerCache, DeletingARequestEndsItAndFreesItsPages) {
  const Running running = start_endless();
  const HttpReply reply = ask("DELETE", "/requests/" + running.id);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json()["cancelled"], true);
  std::string last, before;
  while (const auto event = running.client->read_event()) before = std::exchange(last, *event);
  EXPECT_EQ(parse_json(before, "the last event")["error"]["code"], "cancelled");
  EXPECT_EQ(last, "[DONE]");
  EXPECT_EQ(ask("DELETE", "/requests/" + running.id).status, 404);
  const Json kv = good(get("/kv"));
  EXPECT_EQ(kv["groups"][0]["held"], 0);
  EXPECT_EQ(good(get("/requests"))["running"], 0);
  EXPECT_EQ(metric("quire_requests_cancelled_total"), 1);
}

TEST_F(ServerCache, AClientThatLeavesEndsItsRequest) {
  for (const bool streams : {true, false}) {
    HttpClient client(port());
    client.request(
        "POST", "/v1/completions",
        Json{{"prompt", "Hi"}, {"max_tokens", 100000}, {"ignore_eos", true}, {"stream", streams}}.dump());
    wait_until("/requests", [](const Json& s) { return s["running"] == 1; });
    client.close();
    wait_until("/requests", [](const Json& s) { return s["running"] == 0; });
  }
  EXPECT_EQ(good(get("/kv"))["groups"][0]["held"], 0);
}

TEST_F(ServerCache, MetricsAreInPrometheusFormatAndMove) {
  ServerOptions options = TestServer::server_options();
  options.metric_names = Metrics::Names::own_and_vllm;
  serve(options);
  EXPECT_EQ(metric("quire_answer_tokens_total"), 0);
  const int prompt_tokens = complete({{"max_tokens", 5}, {"ignore_eos", true}})["usage"]["prompt_tokens"];
  complete({{"max_tokens", 5}, {"ignore_eos", true}});
  post("/v1/completions", {{"prompt", 5}});
  EXPECT_EQ(metric("quire_answer_tokens_total"), 10);
  EXPECT_EQ(metric("vllm:generation_tokens_total"), 10);
  EXPECT_EQ(metric("quire_prompt_tokens_total"), 2 * prompt_tokens);
  EXPECT_EQ(metric("quire_cached_prompt_tokens_total"), prompt_tokens - 1);
  EXPECT_EQ(metric("quire_requests_finished_total"), 2);
  EXPECT_EQ(metric("vllm:request_success_total"), 2);
  EXPECT_EQ(metric("quire_requests_refused_total"), 1);
  EXPECT_EQ(metric("vllm:num_requests_running"), 0);
  EXPECT_EQ(metric("vllm:time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(metric("vllm:cache_config_info"), 1);
  EXPECT_GE(metric("quire_connections"), 1);
  for (const char* name :
       {"vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:e2e_request_latency_seconds_sum",
        "vllm:inter_token_latency_seconds_count", "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_queries_total", "quire_kv_usage_ratio", "quire_steps_total"})
    EXPECT_GE(metric(name), 0) << name;

  const HttpReply reply = get("/metrics");
  EXPECT_TRUE(reply.header("content-type").starts_with("text/plain; version=0.0.4"));
  std::istringstream lines(reply.body);
  std::set<std::string> typed, samples;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, what, name;
    words >> first;
    if (first == "#") {
      words >> what >> name;
      EXPECT_TRUE(what == "HELP" || what == "TYPE") << line;
      EXPECT_TRUE(what == "HELP" || typed.insert(name).second) << "twice: " << name;
      continue;
    }
    EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second) << "twice: " << line;
    EXPECT_NO_THROW((void)std::stod(line.substr(line.rfind(' ') + 1))) << line;
    std::string family = first.substr(0, first.find('{'));
    for (const char* end : {"_bucket", "_sum", "_count"}) {
      if (!typed.contains(family) && family.ends_with(end)) family.erase(family.rfind(end));
    }
    EXPECT_TRUE(typed.contains(family)) << line;
  }
  EXPECT_GT(samples.size(), 30u);
}

TEST_F(ServerCache, OwnNamesAloneAreExportedUnlessOthersAreAskedFor) {
  EXPECT_EQ(get("/metrics").body.find("vllm:"), std::string::npos);
}

}  // namespace
}  // namespace quire
