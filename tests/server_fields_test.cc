// What each field of a request does, and how a wrong one is refused.
#include <cmath>

#include "engine/model_grammars.h"
#include "server_fixture.h"

namespace quire {
namespace {

class ServerFields : public ServerTest {
 protected:
  // The ids of a text that the model said, by their logprobs.
  std::vector<std::string> tokens_of(Json fields) {
    fields["logprobs"] = 0;
    fields["ignore_eos"] = true;
    return complete(fields)["choices"][0]["logprobs"]["tokens"].get<std::vector<std::string>>();
  }
  // The status is 400 and names the field.
  void expect_refused(const std::string& target, const Json& body, const std::string& param) {
    const HttpReply reply = post(target, body);
    EXPECT_EQ(reply.status, 400) << body << reply.body;
    ASSERT_EQ(reply.header("content-type"), "application/json");
    EXPECT_EQ(reply.error("param"), param) << body << reply.body;
    EXPECT_EQ(reply.error("type"), "invalid_request_error");
    EXPECT_NE(reply.error("message").find(param), std::string::npos) << reply.body;
    EXPECT_NE(reply.error("code"), "null");
  }
  void refuse_completion(const char* field, const Json& value, std::string param = "") {
    Json body = {{"prompt", "Hi"}};
    body[field] = value;
    expect_refused("/v1/completions", body, param.empty() ? field : param);
  }
  void refuse_chat(const char* field, const Json& value, std::string param = "") {
    Json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    body[field] = value;
    expect_refused("/v1/chat/completions", body, param.empty() ? field : param);
  }
};

TEST_F(ServerFields, TheSameSeedGivesTheSameTextAndAnotherOneDoesNot) {
  const Json seven = {{"seed", 7}, {"temperature", 1}, {"max_tokens", 24}, {"ignore_eos", true}};
  Json eight = seven;
  eight["seed"] = 8;
  EXPECT_EQ(text_of(complete(seven)), text_of(complete(seven)));
  EXPECT_NE(text_of(complete(seven)), text_of(complete(eight)));
  EXPECT_EQ(text_of(chat(seven)), text_of(chat(seven)));
  Json none = seven;
  none.erase("seed");
  EXPECT_NE(text_of(complete(none)), text_of(complete(none)));
  none["seed"] = -5;  // OpenAI's seeds are signed
  EXPECT_EQ(text_of(complete(none)), text_of(complete(none)));
}

TEST_F(ServerFields, AStopTextEndsTheAnswerBeforeIt) {
  Json fields = {{"temperature", 1}, {"seed", 21}, {"max_tokens", 60}, {"ignore_eos", true}};
  const std::string all = text_of(complete(fields));
  // A letter that comes late enough to leave some text before it.
  size_t at = all.size() / 3;
  while (at < all.size() && (!std::isalnum(static_cast<unsigned char>(all[at])) || all.find(all[at]) != at))
    ++at;
  ASSERT_LT(at, all.size()) << all;
  const std::string stop(1, all[at]);
  fields["stop"] = stop;
  const Json one = complete(fields);
  EXPECT_EQ(text_of(one), all.substr(0, at));
  EXPECT_EQ(one["choices"][0]["finish_reason"], "stop");
  fields["stop"] = {"no such text", stop};
  EXPECT_EQ(text_of(complete(fields)), all.substr(0, at));
  const StreamReply streamed = stream_completion(fields);
  EXPECT_EQ(streamed.text(), all.substr(0, at));
  EXPECT_EQ(streamed.finish_reason(), "stop");
  fields["stop"] = all.substr(at, 3) + "never";  // begins like the text and goes on otherwise
  EXPECT_EQ(text_of(complete(fields)), all);
  EXPECT_EQ(stream_completion(fields).text(), all);
}

TEST_F(ServerFields, AStopTokenEndsTheAnswer) {
  const Json fields = {
      {"temperature", 0}, {"max_tokens", 50}, {"logit_bias", {{"70", 100}}}, {"ignore_eos", true}};
  Json stopping = fields;
  stopping["stop_token_ids"] = {69, 70};
  EXPECT_EQ(complete(fields)["usage"]["completion_tokens"], 50);
  const Json stopped = complete(stopping);
  EXPECT_EQ(stopped["usage"]["completion_tokens"], 1);
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServerFields, ABiasForcesATokenOrBansIt) {
  const Json fields = {{"temperature", 0}, {"max_tokens", 12}};
  Json forced = fields;
  forced["logit_bias"] = {{"70", 100}};
  const std::string wanted = server().text().tokenizer.decode(std::vector<TokenId>{70});
  EXPECT_EQ(tokens_of(forced), std::vector<std::string>(12, wanted));

  const std::string banned = tokens_of(fields).front();
  const auto id = server().text().tokenizer.encode(banned, {.add_special = false});
  Json without = fields;
  for (TokenId token = 0; token < 320; ++token) {
    if (server().text().tokenizer.decode(std::span(&token, 1)) == banned)
      without["logit_bias"][std::to_string(token)] = -100;
  }
  for (const std::string& token : tokens_of(without)) EXPECT_NE(token, banned);
}

TEST_F(ServerFields, TheNewerNameOfMaxTokensWins) {
  const auto count = [&](Json fields) {
    fields["ignore_eos"] = true;
    return chat(fields)["usage"]["completion_tokens"].get<int>();
  };
  EXPECT_EQ(count({{"max_tokens", 3}}), 3);
  EXPECT_EQ(count({{"max_completion_tokens", 5}}), 5);
  EXPECT_EQ(count({{"max_tokens", 3}, {"max_completion_tokens", 5}}), 5);
  EXPECT_EQ(count({{"max_tokens", 3.0}}), 3);  // as some clients write it
}

TEST_F(ServerFields, LogprobsOfAChatAreThoseOfItsTokens) {
  const Json fields = {
      {"max_tokens", 12}, {"temperature", 0}, {"ignore_eos", true}, {"logprobs", true}, {"top_logprobs", 3}};
  const Json whole = chat(fields);
  const Json& content = whole["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 12u);
  std::string bytes;
  for (const Json& token : content) {
    for (const int byte : token["bytes"]) bytes += char(byte);
    ASSERT_EQ(token["top_logprobs"].size(), 3u);
    // Greedy: the one that was chosen is the likeliest.
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
    EXPECT_EQ(token["top_logprobs"][0]["logprob"], token["logprob"]);
    EXPECT_GE(token["top_logprobs"][0]["logprob"], token["top_logprobs"][1]["logprob"]);
    EXPECT_LE(token["logprob"], 0);
  }
  EXPECT_TRUE(whole["choices"][0]["logprobs"]["refusal"].is_null());
  Json streamed = Json::array();
  for (const Json& event : stream_chat(fields).events) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& token : logprobs["content"]) streamed.push_back(token);
  }
  EXPECT_EQ(streamed, content);
  Json none = fields;
  none["top_logprobs"] = 0;
  EXPECT_EQ(chat(none)["choices"][0]["logprobs"]["content"][0]["top_logprobs"], Json::array());
}

TEST_F(ServerFields, LogprobsOfACompletionAreListsOfOneLength) {
  const Json fields = {
      {"max_tokens", 12}, {"temperature", 0.8}, {"seed", 4}, {"ignore_eos", true}, {"logprobs", 2}};
  const Json logprobs = complete(fields)["choices"][0]["logprobs"];
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    ASSERT_EQ(logprobs[list].size(), 12u) << list;
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_LE(logprobs["top_logprobs"][0].size(), 2u);  // two tokens may be spelled alike
  Json streamed = {{"tokens", Json::array()},
                   {"token_logprobs", Json::array()},
                   {"top_logprobs", Json::array()},
                   {"text_offset", Json::array()}};
  for (const Json& event : stream_completion(fields).events) {
    const Json& part = event["choices"][0]["logprobs"];
    if (part.is_null()) continue;
    for (auto& [list, values] : streamed.items())
      values.insert(values.end(), part[list].begin(), part[list].end());
  }
  EXPECT_EQ(streamed, logprobs);
  Json own = fields;
  own["logprobs"] = 0;
  EXPECT_TRUE(complete(own)["choices"][0]["logprobs"]["top_logprobs"].is_null());
}

TEST_F(ServerFields, EveryNumberIsTakenAtTheEndsOfItsRange) {
  const std::vector<std::pair<const char*, std::vector<double>>> ranges = {
      {"temperature", {0, 2}},
      {"top_p", {0, 1}},
      {"min_p", {0, 1}},
      {"typical_p", {1e-6, 1}},
      {"repetition_penalty", {1e-3, 100}},
      {"presence_penalty", {-2, 2}},
      {"frequency_penalty", {-2, 2}},
      {"top_k", {-1, 2147483647}}};
  for (const auto& [field, ends] : ranges) {
    for (const double end : ends) complete({{field, end}, {"max_tokens", 2}});
    refuse_completion(field, ends[0] - 1);
    refuse_completion(field, ends[1] * 2 + 1);
    refuse_completion(field, "much");
    complete({{field, nullptr}, {"max_tokens", 2}});
  }
}

TEST_F(ServerFields, WrongTypesAndValuesAreRefusedByName) {
  refuse_completion("max_tokens", 0);
  refuse_completion("max_tokens", 2.5);
  refuse_completion("max_tokens", "many");
  refuse_chat("max_completion_tokens", -1);
  refuse_completion("n", 0);
  refuse_completion("n", 1000);
  refuse_completion("best_of", 3);
  refuse_completion("stop", "");
  refuse_completion("stop", {1, 2});
  refuse_completion("stop", Json::array_t(17, "x"));
  refuse_completion("stop_token_ids", {320});
  refuse_completion("seed", "lucky");
  refuse_completion("seed", 18446744073709551615u);
  refuse_completion("stream", "yes");
  refuse_completion("echo", 1);
  refuse_completion("user", 7);
  refuse_completion("logprobs", 21);
  refuse_completion("logprobs", true);
  refuse_chat("logprobs", 3);
  refuse_chat("top_logprobs", 3);
  refuse_completion("logit_bias", {1, 2});
  refuse_completion("logit_bias", {{"320", 1}});
  refuse_completion("logit_bias", {{"-1", 1}});
  refuse_completion("logit_bias", {{"70", 101}});
  refuse_completion("logit_bias", {{"70", "much"}});
  refuse_completion("stream_options", {{"include_usage", true}});
  refuse_completion("quire", "report");
  refuse_completion("quire", {{"priority", 1e6}}, "quire.priority");
  refuse_completion("quire", {{"deadline_ms", 0}}, "quire.deadline_ms");
  refuse_completion("quire", {{"kv_keep", "half"}}, "quire.kv_keep");
  refuse_completion("quire", {{"kv_keep", 0}}, "quire.kv_keep");
  refuse_completion("quire", {{"kv_keep", "50%"}, {"kv_policy", "best"}}, "quire.kv_policy");
  refuse_completion("quire", {{"kv_keep", "50%"}, {"kv_window", 0}}, "quire.kv_window");
  refuse_completion("quire", {{"kv_keep", "auto"}}, "quire.kv_keep");
  refuse_completion("quire", {{"kv_budget", "much"}}, "quire.kv_budget");
  refuse_completion("quire", {{"kv_budget", 256}, {"kv_keep", "50%"}}, "quire.kv_budget");
  refuse_completion("quire", {{"kv_budget", 256}, {"kv_policy", "zip"}}, "quire.kv_policy");
  refuse_completion("quire", {{"kv_budget", 256}, {"kv_pin", -1}}, "quire.kv_pin");
  refuse_completion("quire", {{"kv_pin", 4}}, "quire.kv_pin");
  refuse_chat("chat_template_kwargs", "x");
  expect_refused("/v1/completions",
                 {{"prompt", "Hi"}, {"stream", true}, {"stream_options", {{"include_usage", 1}}}},
                 "stream_options.include_usage");
}

TEST_F(ServerFields, APrunedPromptHoldsFewerPagesAndTheReportSaysSo) {
  std::string prompt;
  for (int i = 0; i < 200; ++i) prompt += "so " + std::to_string(i) + " it went, ";
  Json fields = {{"max_tokens", 4}, {"ignore_eos", true}, {"temperature", 0}, {"quire", true}};
  const Json whole = complete(fields, prompt)["quire"];
  EXPECT_EQ(whole["pruned_tokens"], 0);
  for (const char* policy : {"streaming", "snap", "zip"}) {
    fields["quire"] = {{"report", true}, {"kv_keep", "25%"}, {"kv_policy", policy}};
    const Json pruned = complete(fields, prompt)["quire"];
    EXPECT_GT(pruned["pruned_tokens"].get<int>(), 400) << policy;
    EXPECT_LT(pruned["kv"]["bytes"].get<double>(), 0.4 * whole["kv"]["bytes"].get<double>()) << policy;
  }
}

TEST_F(ServerFields, ABudgetBoundsThePagesOfPromptAndAnswerAndTheReportSaysWhatWasForgotten) {
  std::string prompt;
  for (int i = 0; i < 100; ++i) prompt += "so " + std::to_string(i) + " it went, ";
  Json fields = {{"max_tokens", 4}, {"ignore_eos", true}, {"temperature", 0}, {"quire", true}};
  const Json whole = complete(fields, prompt)["quire"];
  EXPECT_FALSE(whole["kv"].contains("budget_rows"));
  for (const char* policy : {"streaming", "snap"}) {
    fields["quire"] = {{"report", true}, {"kv_budget", 128}, {"kv_policy", policy}};
    const Json kv = complete(fields, prompt)["quire"]["kv"];
    EXPECT_EQ(kv["budget_rows"], 128) << policy;
    EXPECT_GT(kv["forgotten_tokens"].get<int>(), 100) << policy;
    EXPECT_LE(kv["pages"].get<int>(), 4) << policy;
    EXPECT_LT(kv["bytes"].get<double>(), whole["kv"]["bytes"].get<double>()) << policy;
  }
}

TEST_F(ServerFields, BadPromptsAreRefusedByName) {
  for (const Json& prompt : std::initializer_list<Json>{
           nullptr, 5, Json::object(), Json::array(), {1.5}, {320}, {-1}, {1, "x"}, true})
    refuse_completion("prompt", prompt);
  refuse_completion("prompt", {"x", 5}, "prompt[1]");
  refuse_completion("prompt", {{1, 2}, Json::array()}, "prompt[1]");
  refuse_completion("prompt", Json::array_t(257, "x"));
  expect_refused("/v1/completions", Json::object(), "prompt");
  const HttpReply long_one = post("/v1/completions", {{"prompt", Json::array_t(TestServer::kContext, 5)}});
  EXPECT_EQ(long_one.status, 400);
  EXPECT_EQ(long_one.error("code"), "context_length_exceeded");
  EXPECT_EQ(long_one.error("param"), "prompt");
}

TEST_F(ServerFields, BadMessagesAreRefusedByPlace) {
  for (const Json& messages : std::initializer_list<Json>{nullptr, "Hi", Json::array(), Json::object()})
    refuse_chat("messages", messages);
  refuse_chat("messages", {"Hi"}, "messages[0]");
  const Json good_one = {{"role", "user"}, {"content", "Hi"}};
  refuse_chat("messages", {good_one, {{"role", "robot"}, {"content", "Hi"}}}, "messages[1].role");
  refuse_chat("messages", {good_one, {{"content", "Hi"}}}, "messages[1].role");
  refuse_chat("messages", {{{"role", "user"}}}, "messages[0].content");
  refuse_chat("messages", {{{"role", "user"}, {"content", 5}}}, "messages[0].content");
  refuse_chat("messages", {{{"role", "user"}, {"content", {{{"type", "text"}}}}}}, "messages[0].content[0]");
  const Json picture = {{{"type", "image_url"}, {"image_url", {{"url", "data:"}}}}};
  refuse_chat("messages", {{{"role", "user"}, {"content", picture}}}, "messages[0].content[0]");
  refuse_chat("messages", {{{"role", "function"}, {"content", "4"}}}, "messages[0].role");
}

TEST_F(ServerFields, WhatIsNotBuiltYetIsRefusedByName) {
  const std::vector<std::pair<const char*, Json>> fields = {
      {"functions", {{{"name", "clock"}}}},
      {"function_call", "auto"},
      {"audio", {{"voice", "alloy"}}},
      {"modalities", {"text", "audio"}},
      {"prediction", {{"type", "content"}, {"content", "x"}}},
      {"store", true},
      {"min_tokens", 3},
      {"bad_words", {"x"}},
      {"allowed_token_ids", {5}},
      {"truncate_prompt_tokens", 5},
      {"include_stop_str_in_output", true},
      {"chat_template", "{{ messages }}"},
      {"continue_final_message", true}};
  for (const auto& [field, value] : fields) refuse_chat(field, value);
  refuse_completion("suffix", "the end");
  refuse_completion("prompt_logprobs", 1);
  refuse_completion("use_beam_search", true);
}

TEST_F(ServerFields, AnAnswerKeepsToWhatItIsAskedToUnderEveryName) {
  const Json schema = {{"type", "array"}, {"items", {{"enum", {1, 2}}}}, {"minItems", 1}, {"maxItems", 2}};
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "n"}, {"strict", true}, {"schema", schema}}}};
  const std::vector<std::pair<const char*, Json>> fields = {{"response_format", format},
                                                            {"guided_json", schema},
                                                            {"json_schema", schema},
                                                            {"guided_regex", "\\[[12]\\]"},
                                                            {"guided_choice", {"[1]", "[2]"}},
                                                            {"structured_outputs", {{"json", schema}}},
                                                            {"grammar", "root ::= \"[\" [12] \"]\""},
                                                            {"guided_grammar", "start: \"[\" /[12]/ \"]\""}};
  for (const auto& [field, value] : fields) {
    const Json answer = chat({{field, value}, {"max_tokens", 60}, {"temperature", 2}, {"seed", 3}});
    const Json said = Json::parse(answer["choices"][0]["message"]["content"].get<std::string>());
    EXPECT_TRUE(said.is_array() && !said.empty() && said.size() <= 2) << field << " " << said;
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop") << field;
  }
}

TEST_F(ServerFields, WhatCannotBeKeptToIsRefusedByName) {
  refuse_chat("response_format", {{"type", "json_schema"}, {"json_schema", Json::object()}});
  refuse_chat("response_format", {{"type", "yaml"}});
  refuse_chat("guided_json", {{"type", "array"}, {"uniqueItems", true}});
  refuse_chat("guided_regex", "(?=a)b");
  refuse_chat("guided_grammar", "root ::= other");
  refuse_chat("guided_choice", Json::array({1}));
  refuse_chat("structured_outputs", {{"regex", "("}}, "structured_outputs.regex");
}

TEST_F(ServerFields, AGrammarThatFindsNoRoomIsToldToComeLater) {
  const auto& grammars = server().text().grammars;
  const size_t most = grammars->figures().most_bytes;
  grammars->limit(1);
  const Json schema = {{"type", "object"}, {"properties", {{"unheard", {{"type", "integer"}}}}}};
  const Json message = {{{"role", "user"}, {"content", "Hi"}}};
  const Json named = {{"type", "json_schema"}, {"name", "a"}, {"schema", schema}};
  const std::pair<const char*, Json> bodies[] = {
      {"/v1/completions", {{"prompt", "Hi"}, {"guided_json", schema}}},
      {"/v1/chat/completions",
       {{"messages", message}, {"response_format", {{"type", "json_schema"}, {"json_schema", named}}}}},
      {"/v1/responses", {{"input", "Hi"}, {"text", {{"format", named}}}}},
      {"/v1/messages",
       {{"model", "tiny"}, {"max_tokens", 9}, {"messages", message}, {"output_config", {{"format", named}}}}},
      {"/api/chat", {{"model", "tiny"}, {"messages", message}, {"format", schema}}},
      {"/api/generate", {{"model", "tiny"}, {"prompt", "Hi"}, {"format", schema}}}};
  for (const auto& [path, body] : bodies) {
    const HttpReply full = post(path, body);
    EXPECT_EQ(full.status, 503) << path << full.body;
    EXPECT_EQ(full.header("retry-after"), "1") << path;
    EXPECT_NE(full.body.find("too many different grammars"), std::string::npos) << full.body;
  }
  grammars->limit(most);
  EXPECT_EQ(post("/v1/completions", {{"prompt", "Hi"}, {"guided_json", schema}, {"max_tokens", 9}}).status,
            200);
}

TEST_F(ServerFields, ToolsAreCheckedByPlace) {
  const Json clock = {{"type", "function"}, {"function", {{"name", "clock"}}}};
  refuse_chat("tools", 5);
  refuse_chat("tools", {clock, 5}, "tools[1]");
  refuse_chat("tools", {{{"type", "web_search"}}}, "tools[0].type");
  refuse_chat("tools", {{{"type", "function"}, {"function", Json::object()}}}, "tools[0].function.name");
  refuse_chat("tool_choice", "required");
  refuse_chat("tool_choice", "perhaps");
  refuse_chat("reasoning_effort", "immense");
  const Json ask = {{"role", "user"}, {"content", "What time is it?"}};
  const Json call = {{"id", "c1"}, {"type", "function"}, {"function", {{"name", ""}}}};
  const Json called = {{"role", "assistant"}, {"tool_calls", Json::array({call})}};
  refuse_chat("messages", Json::array({ask, called}), "messages[1].tool_calls[0].function.name");
}

TEST_F(ServerFields, FieldsThatChangeNothingAreIgnored) {
  chat({{"max_tokens", 1},
        {"no_such_field", {{"deep", {1, 2}}}},
        {"response_format", {{"type", "text"}}},
        {"tools", Json::array()},
        {"tool_choice", "none"},
        {"store", false},
        {"parallel_tool_calls", true},
        {"metadata", {{"a", "b"}}},
        {"service_tier", "auto"},
        {"modalities", {"text"}},
        {"min_tokens", 0},
        {"user", "somebody"},
        {"stream_options", nullptr},
        {"stop", nullptr},
        {"n", nullptr}});
}

TEST_F(ServerFields, AnotherModelIsNotFound) {
  const HttpReply reply = post("/v1/completions", {{"prompt", "Hi"}, {"model", "gpt-5"}});
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.error("code"), "model_not_found");
  EXPECT_EQ(reply.error("param"), "model");
}

TEST_F(ServerFields, ABodyThatIsNoJsonObjectIsRefused) {
  for (const std::string body :
       {"{", "[]", "7", "\"\xFF\"", "{\"prompt\": \"\xC3\x28\"}", "{\"n\": 1e999}"}) {
    const HttpReply reply = ask("POST", "/v1/completions", body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_EQ(reply.error("code"), "invalid_json") << body;
  }
  EXPECT_EQ(ask("POST", "/v1/chat/completions").error("code"), "invalid_json");
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_EQ(ask("POST", "/v1/chat/completions", "{\"messages\": " + deep + "}").status, 400);
}

TEST_F(ServerFields, AnObjectOfVeryManyMembersHoldsNobodyUp) {
  std::string body = "{\"prompt\": \"Hi\"";
  for (int i = 0; i < 1'000'000; ++i) body += ",\"" + std::to_string(i) + "\":0";
  EXPECT_EQ(ask("POST", "/v1/completions", body + "}").status, 400);
}

}  // namespace
}  // namespace quire
