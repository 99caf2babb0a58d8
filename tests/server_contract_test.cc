// What the API answers: shapes, streams, choices, prompts.
#include "server_fixture.h"
#include "text/utf8.h"

namespace quire {
namespace {

using ServerContract = ServerTest;

TEST_F(ServerContract, ListsTheModelItServesAndNoOther) {
  const Json list = good(get("/v1/models"));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["max_model_len"], TestServer::kContext);
  EXPECT_GT(list["data"][0]["created"], 1700000000);
  EXPECT_TRUE(list["data"][0]["owned_by"].is_string());
  EXPECT_EQ(good(get("/v1/models/tiny")), list["data"][0]);

  const HttpReply other = get("/v1/models/huge");
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.error("code"), "model_not_found");
  EXPECT_EQ(other.error("type"), "not_found_error");
}

TEST_F(ServerContract, FindsAModelWhoseNameIsEscapedInThePath) {
  serve(TestServer::server_options(), TestServer::engine_options(), "an org/a+b model");
  EXPECT_EQ(good(get("/v1/models/an%20org%2Fa+b%20model"))["id"], "an org/a+b model");
  EXPECT_EQ(good(get("/v1/models/an%20org/a%2Bb%20model"))["id"], "an org/a+b model");
  EXPECT_EQ(get("/v1/models/an%2").status, 404);
}

TEST_F(ServerContract, ACompletionHasTextFinishReasonAndUsage) {
  const HttpReply reply = post(
      "/v1/completions", {{"model", "tiny"}, {"prompt", "Hello"}, {"max_tokens", 5}, {"temperature", 0}});
  EXPECT_EQ(reply.header("content-type"), "application/json");
  const Json response = good(reply);
  EXPECT_TRUE(response["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(response["id"], reply.header("x-request-id"));
  EXPECT_EQ(response["object"], "text_completion");
  EXPECT_EQ(response["model"], "tiny");
  EXPECT_EQ(response["system_fingerprint"], "test");
  EXPECT_GT(response["created"], 1700000000);
  ASSERT_EQ(response["choices"].size(), 1u);
  EXPECT_EQ(response["choices"][0]["index"], 0);
  EXPECT_EQ(response["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(response["choices"][0]["logprobs"].is_null());
  const size_t prompt = server().text().tokenizer.encode("Hello").size();
  EXPECT_EQ(response["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(response["usage"]["completion_tokens"], 5);
  EXPECT_EQ(response["usage"]["total_tokens"], prompt + 5);
  EXPECT_EQ(response["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_FALSE(response.contains("quire"));
}

TEST_F(ServerContract, ACompletionWithoutMaxTokensHasSixteen) {
  EXPECT_EQ(complete({{"ignore_eos", true}})["usage"]["completion_tokens"], 16);
}

TEST_F(ServerContract, AChatAnswersAsTheAssistant) {
  const Json response = chat({{"max_tokens", 4}, {"temperature", 0}, {"ignore_eos", true}});
  EXPECT_TRUE(response["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(response["object"], "chat.completion");
  const Json& message = response["choices"][0]["message"];
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_TRUE(message["content"].is_string());
  EXPECT_TRUE(message["refusal"].is_null());
  EXPECT_EQ(response["usage"]["completion_tokens"], 4);
  const ChatInput chat{.messages = OrderedJson::parse(R"([{"role":"user","content":"Hello"}])"), .tools = {}};
  EXPECT_EQ(response["usage"]["prompt_tokens"], server().text().encode_chat(chat).size());
}

TEST_F(ServerContract, MessagesMayHavePartsAndNewerRoles) {
  const auto answer = [&](const Json& messages) {
    return text_of(
        good(post("/v1/chat/completions", {{"messages", messages}, {"max_tokens", 6}, {"temperature", 0}})));
  };
  const std::string plain =
      answer({{{"role", "system"}, {"content", "Be kind."}}, {{"role", "user"}, {"content", "Hi\nyou"}}});
  const Json parts = {{{"type", "text"}, {"text", "Hi"}}, {{"type", "text"}, {"text", "you"}}};
  EXPECT_EQ(
      answer({{{"role", "developer"}, {"content", "Be kind."}}, {{"role", "user"}, {"content", parts}}}),
      plain);
}

TEST_F(ServerContract, AStreamedCompletionIsTheSameTextInEvents) {
  const Json fields = {{"max_tokens", 40}, {"temperature", 0.9}, {"seed", 3}, {"ignore_eos", true}};
  const StreamReply streamed = stream_completion(fields);
  const Json whole = complete(fields);
  EXPECT_EQ(streamed.text(), text_of(whole));
  EXPECT_EQ(streamed.finish_reason(), "length");
  for (const Json& event : streamed.events) {
    EXPECT_EQ(event["object"], "text_completion");
    EXPECT_EQ(event["id"], streamed.head.header("x-request-id"));
    EXPECT_EQ(event["model"], "tiny");
    EXPECT_FALSE(event.contains("usage"));
  }
}

TEST_F(ServerContract, AStreamedChatBeginsWithTheRoleAndEndsWithTheReason) {
  const Json fields = {{"max_tokens", 20}, {"temperature", 0}, {"ignore_eos", true}};
  const StreamReply streamed = stream_chat(fields);
  EXPECT_EQ(streamed.text(), text_of(chat(fields)));
  const Json& first = streamed.events.front()["choices"][0];
  EXPECT_EQ(first["delta"]["role"], "assistant");
  EXPECT_TRUE(first["finish_reason"].is_null());
  for (size_t i = 1; i < streamed.events.size(); ++i)
    EXPECT_FALSE(streamed.events[i]["choices"][0]["delta"].contains("role"));
  const Json& last = streamed.events.back()["choices"][0];
  EXPECT_EQ(last["delta"], Json::object());
  EXPECT_EQ(last["finish_reason"], "length");
  for (const Json& event : streamed.events) EXPECT_EQ(event["object"], "chat.completion.chunk");
}

TEST_F(ServerContract, UsageComesLastInAStreamIfItIsAskedFor) {
  for (const bool is_chat : {true, false}) {
    const Json fields = {
        {"max_tokens", 7}, {"ignore_eos", true}, {"stream_options", {{"include_usage", true}}}};
    const StreamReply streamed = is_chat ? stream_chat(fields) : stream_completion(fields);
    for (size_t i = 0; i + 1 < streamed.events.size(); ++i)
      EXPECT_TRUE(streamed.events[i].contains("usage") && streamed.events[i]["usage"].is_null());
    EXPECT_EQ(streamed.events.back()["choices"], Json::array());
    EXPECT_EQ(streamed.events.back()["usage"]["completion_tokens"], 7);
  }
}

TEST_F(ServerContract, TextsAreWholeCharactersWhateverTheModelSays) {
  // A model of random weights says bytes that are no characters.
  const Json fields = {{"max_tokens", 300}, {"temperature", 2}, {"seed", 11}, {"ignore_eos", true}};
  const StreamReply streamed = stream_completion(fields);
  for (const Json& event : streamed.events)
    EXPECT_TRUE(is_valid_utf8(event["choices"][0]["text"].get<std::string>()));
  EXPECT_EQ(streamed.text(), text_of(complete(fields)));
}

TEST_F(ServerContract, SeveralChoicesDifferAndAreCountedTogether) {
  const Json fields = {{"n", 3}, {"max_tokens", 8}, {"temperature", 1}, {"seed", 5}, {"ignore_eos", true}};
  const Json whole = complete(fields);
  ASSERT_EQ(whole["choices"].size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(whole["choices"][i]["index"], i);
  EXPECT_NE(text_of(whole, 0), text_of(whole, 1));
  EXPECT_NE(text_of(whole, 1), text_of(whole, 2));
  EXPECT_EQ(whole["usage"]["completion_tokens"], 24);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], server().text().tokenizer.encode("Once upon a time").size());

  for (const bool is_chat : {true, false}) {
    const StreamReply streamed = is_chat ? stream_chat(fields) : stream_completion(fields);
    const Json again = is_chat ? chat(fields) : whole;
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(streamed.text(i), text_of(again, i));
      EXPECT_EQ(streamed.finish_reason(i), "length");
    }
  }
}

TEST_F(ServerContract, SeveralPromptsAreAnsweredInTheirOrder) {
  const Json fields = {{"max_tokens", 6}, {"temperature", 0}, {"n", 2}, {"ignore_eos", true}};
  const Json both = complete(fields, {"One day", "Two nights later"});
  ASSERT_EQ(both["choices"].size(), 4u);
  const Json first = complete(fields, "One day"), second = complete(fields, "Two nights later");
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(both["choices"][i]["index"], i);
    EXPECT_EQ(text_of(both, i), text_of(i < 2 ? first : second, i % 2));
  }
  for (const char* count : {"prompt_tokens", "completion_tokens"})
    EXPECT_EQ(both["usage"][count], first["usage"][count].get<int>() + second["usage"][count].get<int>());
  const StreamReply streamed = stream_completion(fields, {"One day", "Two nights later"});
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(streamed.text(i), text_of(both, i));
}

TEST_F(ServerContract, PromptsMayBeTokensOrListsOfTokens) {
  const Json fields = {{"max_tokens", 6}, {"temperature", 0}};
  const auto tokens = server().text().tokenizer.encode("One day");
  const auto others = server().text().tokenizer.encode("Two nights later");
  const std::string expected = text_of(complete(fields, "One day"));
  EXPECT_EQ(text_of(complete(fields, tokens)), expected);
  const Json both = complete(fields, Json::array({tokens, others}));
  EXPECT_EQ(text_of(both, 0), expected);
  EXPECT_EQ(text_of(both, 1), text_of(complete(fields, "Two nights later")));
  EXPECT_EQ(text_of(complete(fields, Json::array({"One day"}))), expected);
}

TEST_F(ServerContract, AStreamThatWaitsGivesSignsOfLife) {
  ServerOptions options = TestServer::server_options();
  options.service.limits.keep_alive_seconds = 0.01;
  EngineOptions engine = TestServer::engine_options();
  engine.max_sequences = 1;
  serve(options, engine);
  const Running first = start_endless();
  HttpClient second(port());
  second.request("POST", "/v1/completions",
                 Json{{"prompt", "Hi"}, {"stream", true}, {"max_tokens", 2}}.dump());
  EXPECT_EQ(second.read_head().status, 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(second.read_event_or_comment(), ": keep-alive");
  EXPECT_EQ(ask("DELETE", "/requests/" + first.id).status, 200);
  std::optional<std::string> event;
  while ((event = second.read_event_or_comment()) == ": keep-alive") {
  }
  ASSERT_TRUE(event.has_value());
  EXPECT_TRUE(parse_json(*event, "the event").contains("choices"));
}

TEST_F(ServerContract, EchoPutsThePromptBeforeTheAnswer) {
  Json fields = {{"max_tokens", 6}, {"temperature", 0}};
  const std::string answer = text_of(complete(fields));
  fields["echo"] = true;
  EXPECT_EQ(text_of(complete(fields)), "Once upon a time" + answer);
  EXPECT_EQ(stream_completion(fields).text(), "Once upon a time" + answer);
  fields["n"] = 2;
  EXPECT_EQ(stream_completion(fields).text(1), "Once upon a time" + answer);
}

TEST_F(ServerContract, EchoOfNoTokensIsThePromptAlone) {
  Json fields = {{"max_tokens", 0}, {"echo", true}};
  const Json whole = complete(fields, {"One day", "Two"});
  EXPECT_EQ(text_of(whole, 0), "One day");
  EXPECT_EQ(text_of(whole, 1), "Two");
  EXPECT_EQ(whole["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 0);
  EXPECT_GT(whole["usage"]["prompt_tokens"], 2);
  fields["stream_options"] = {{"include_usage", true}};
  const StreamReply streamed = stream_completion(fields, "One day");
  EXPECT_EQ(streamed.text(), "One day");
  EXPECT_EQ(streamed.finish_reason(), "length");
  EXPECT_TRUE(streamed.events.front().contains("usage") && streamed.events.front()["usage"].is_null());
  EXPECT_EQ(streamed.events.back()["usage"]["completion_tokens"], 0);
}

TEST_F(ServerContract, TokenizingAndBackIsTheSameText) {
  for (const std::string words : {"Hello, w\xC3\xB6rld! \xF0\x9F\x98\x80\n", "<|end|>", ""}) {
    const Json tokens = good(post("/tokenize", {{"prompt", words}, {"add_special_tokens", false}}));
    EXPECT_EQ(tokens["count"], tokens["tokens"].size());
    EXPECT_EQ(tokens["max_model_len"], TestServer::kContext);
    const Json back = good(post("/detokenize", {{"tokens", tokens["tokens"]}}));
    EXPECT_EQ(back["prompt"], words);
    EXPECT_EQ(back["content"], words);
  }
  const Json with = good(post("/tokenize", {{"content", "Hi"}, {"return_token_strs", true}}));
  EXPECT_EQ(with["tokens"][0], 1);  // the beginning
  EXPECT_EQ(with["token_strs"][0], "<|begin|>");
  EXPECT_EQ(good(post("/detokenize", {{"tokens", with["tokens"]}, {"skip_special_tokens", true}}))["prompt"],
            "Hi");
}

TEST_F(ServerContract, ASpecialTokenIsFoundByItsNameAlone) {
  const Json about = good(get("/tokenizer_info"));
  const auto tokens_of = [&](const std::string& text, Json fields = Json::object()) {
    fields["prompt"] = text;
    fields["add_special_tokens"] = false;
    return good(post("/tokenize", fields))["tokens"];
  };
  for (const char* which : {"bos_token", "eos_token"}) {
    const auto name = about[which].get<std::string>();
    EXPECT_EQ(tokens_of(name), Json::array({*server().text().tokenizer.find(name)}));
    EXPECT_GT(tokens_of(name, {{"parse_special", false}}).size(), 1u);
    EXPECT_GT(tokens_of(name + "x").size(), 2u) << "in a text it is the text's";
  }
}

TEST_F(ServerContract, TokenizingMessagesGivesTheTokensThatAChatCounts) {
  const Json messages = {{{"role", "user"}, {"content", "Hello"}}};
  const Json tokens = good(post("/tokenize", {{"messages", messages}}));
  EXPECT_EQ(tokens["count"], chat({{"max_tokens", 1}})["usage"]["prompt_tokens"]);
  EXPECT_EQ(post("/detokenize", {{"tokens", {1, 320}}}).error("param"), "tokens");
  EXPECT_EQ(post("/detokenize", Json::object()).error("param"), "tokens");
  EXPECT_EQ(post("/tokenize", Json::object()).error("param"), "prompt");
}

TEST_F(ServerContract, SaysThatItIsWellAndWhichVersionItIs) {
  EXPECT_EQ(good(get("/health"))["status"], "ok");
  EXPECT_EQ(good(get("/version"))["version"], "1.2.3");
  EXPECT_EQ(good(get("/server_info"))["version"], "1.2.3");
  EXPECT_EQ(good(get("/server_info"))["served_model_name"], good(get("/v1/models"))["data"][0]["id"]);
  EXPECT_EQ(good(get("/model_info"))["is_generation"], true);
}

TEST_F(ServerContract, AReportSaysWhereTheTimeWentAndWhatWasCached) {
  const std::string prompt(200, 'a');
  complete({{"max_tokens", 2}}, prompt);
  const Json second = complete({{"max_tokens", 4}, {"ignore_eos", true}, {"quire", true}}, prompt);
  const Json& report = second["quire"];
  EXPECT_EQ(report["id"], second["id"]);
  const int cached = second["usage"]["prompt_tokens_details"]["cached_tokens"];
  EXPECT_EQ(cached, second["usage"]["prompt_tokens"].get<int>() - 1);  // all but the last, which is computed
  EXPECT_EQ(report["cache"]["cached_tokens"], cached);
  EXPECT_EQ(report["cache"]["computed_tokens"], 1);
  EXPECT_GT(report["timings"]["ttft_ms"], 0);
  EXPECT_GE(report["kv"]["pages"], 1);
  EXPECT_TRUE(report["verdict"].is_array());

  const StreamReply streamed = stream_chat({{"max_tokens", 4}, {"quire", {{"report", true}}}});
  EXPECT_EQ(streamed.events.back()["quire"]["id"], streamed.head.header("x-request-id"));
  EXPECT_TRUE(streamed.events.back()["usage"].is_object());
}

}  // namespace
}  // namespace quire
