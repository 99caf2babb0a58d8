#include <gtest/gtest.h>

#include "base/error.h"
#include "grammar/grammar_compiler.h"

namespace quire::grammar {
namespace {

std::shared_ptr<Grammar> compile_schema(const std::string& schema) {
  static GrammarCompiler compiler({"{", "}"});
  return compiler.compile({GrammarSource::Kind::json_schema, schema});
}

std::string refusal(const std::string& schema) {
  try {
    compile_schema(schema);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void check(const std::string& schema, const std::vector<std::string>& valid,
           const std::vector<std::string>& invalid) {
  const auto grammar = compile_schema(schema);
  for (const std::string& text : valid)
    EXPECT_TRUE(grammar->accepts(text)) << schema << "\n  allows " << text;
  for (const std::string& text : invalid)
    EXPECT_FALSE(grammar->accepts(text)) << schema << "\n  forbids " << text;
}

TEST(JsonSchema, KnowsTheTypes) {
  check("true", {"1", "null", "{\"a\": [1, {}]}", "\"\\u00e9\\n\"", "-1.5e+3"},
        {"", "01", "{a:1}", "\"\n\"", "[1,]", "\"\\ud800\"", "1 "});
  check(R"({"type":"integer"})", {"0", "-12"}, {"1.5", "\"1\"", "-", "true"});
  check(R"({"type":["null","boolean"]})", {"null", "false"}, {"0", "[]"});
  check(R"({"enum":[1,"a",{"b":[null]}]})", {"1", "\"a\"", "{\"b\": [null]}"}, {"2", "\"b\"", "{}"});
}

TEST(JsonSchema, BoundsNumbers) {
  check(R"({"type":"integer","minimum":-5,"maximum":120})", {"-5", "0", "99", "120", "-1"},
        {"-6", "121", "1000", "-10"});
  check(R"({"type":"number","exclusiveMinimum":0.25,"maximum":10})",
        {"0.26", "0.250001", "10", "10.0", "9.99"}, {"0.25", "0", "10.1", "-1", "0.250"});
  check(R"({"type":"number","maximum":-1.5})", {"-1.5", "-2", "-1.50"}, {"-1.4", "0", "1.5"});
  check(R"({"type":"integer","multipleOf":7})", {"0", "7", "-14", "700000007"}, {"1", "8", "-15"});
  check(R"({"type":"number","multipleOf":0.01})", {"1.25", "3", "0.010"}, {"1.255", "0.001"});
  check(R"({"type":"integer","minimum":5,"multipleOf":1000000000,"maximum":5000000000})",
        {"1000000000", "5000000000"}, {"0", "6000000000", "7"});
}

TEST(JsonSchema, BoundsStrings) {
  check(R"({"type":"string","minLength":2,"maxLength":3})",
        {"\"ab\"", "\"é\\u00e9\"", "\"a\\\"b\"", "\"\\ud83d\\ude00a\""},
        {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\""});
  check(R"({"type":"string","pattern":"^a.c"})", {"\"abc\"", "\"axcd\""},
        {"\"ab\"", "\"xabc\"", "\"\\u0061bc\""});
  check(R"({"type":"string","pattern":"b+$","maxLength":4})", {"\"b\"", "\"aabb\""}, {"\"ba\"", "\"aaabb\""});
  check(R"({"type":"string","format":"date"})", {"\"2024-02-29\"", "\"2023-12-31\""},
        {"\"2023-02-29\"", "\"2023-13-01\"", "\"1900-02-29\""});
  check(R"({"format":"ipv4","type":"string"})", {"\"127.0.0.1\""},
        {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""});
  check(R"({"format":"ipv6","type":"string"})", {"\"::1\"", "\"2001:db8::\"", "\"1:2:3:4:5:6:7:8\""},
        {"\"1::2::3\"", "\"1:2:3\"", "\":1\""});
  check(R"({"format":"uuid","type":"string"})", {"\"2eb8aa08-aa98-11ea-b4aa-73b441d16380\""},
        {"\"2eb8aa08\""});
  check(R"({"format":"email","type":"string"})", {"\"joe.b@example.com\""},
        {"\"joe\"", "\"@x.y\"", "\".a@x.y\""});
  check(R"({"format":"date-time","type":"string"})", {"\"1990-12-31T15:59:50.123-08:00\""},
        {"\"1990-12-31\"", "\"1990-12-31T25:00:00Z\""});
  check(R"({"format":"uri","type":"string"})", {"\"http://a.b:80/c?d#e\"", "\"urn:x:y\""},
        {"\"//a\"", "\"http://a b\""});
}

TEST(JsonSchema, KnowsArrays) {
  check(R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2})", {"[1]", "[1, 2]"},
        {"[]", "[1,2,3]", "[\"a\"]"});
  check(R"({"type":"array","prefixItems":[{"type":"null"}],"items":{"const":1}})",
        {"[]", "[null]", "[null,1,1]"}, {"[1]", "[null,2]"});
  check(R"({"type":"array","contains":{"const":7},"minContains":2})", {"[7,1,7]", "[7,7]"},
        {"[7]", "[1,2]", "[]"});
  check(R"({"type":"array","items":{"enum":["a","b"]},"uniqueItems":true})", {"[]", "[\"b\",\"a\"]"},
        {"[\"a\",\"a\"]"});
  check(R"({"type":"array","items":[{"type":"null"}],"additionalItems":false})", {"[]", "[null]"},
        {"[null,null]"});
  check(R"({"type":"array","items":[{"type":"null"}],"unevaluatedItems":false})", {"[]", "[null]"},
        {"[null,null]"});
  check(
      R"({"type":"array","items":[{"type":"null"}],"additionalItems":{"const":1},"unevaluatedItems":false})",
      {"[]", "[null,1]"}, {"[null,null]"});
}

TEST(JsonSchema, KnowsObjects) {
  const char* kPerson =
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name"]})";
  check(kPerson,
        {R"({"name":"x"})", R"({"name": "x", "age": 3})", R"({"name":"x","other":[1]})",
         "{\n  \"name\": \"x\"\n}"},
        {"{}", R"({"age":3})", R"({"name":1})", R"({"name":"x","age":"y"})", R"({"name":"x","\u0061ge":"y"})",
         R"({"name":"x","name":1})"});
  check(R"({"type":"object","properties":{"a":{}},"additionalProperties":false})", {"{}", R"({"a":1})"},
        {R"({"b":1})"});
  check(
      R"({"type":"object","patternProperties":{"^s_":{"type":"string"},"x$":{"minLength":2}},"additionalProperties":{"type":"null"}})",
      {R"({"s_a":"b"})", R"({"s_x":"bb","y":null,"x":1})"}, {R"({"s_a":1})", R"({"s_x":"b"})", R"({"y":1})"});
  check(R"({"type":"object","propertyNames":{"pattern":"^[a-c]+$","maxLength":2}})", {R"({"ab":1,"c":2})"},
        {R"({"d":1})", R"({"abc":1})"});
  check(R"({"type":"object","minProperties":2,"maxProperties":3})",
        {R"({"a":1,"bb":2})", R"({"a":1,"bb":2,"c":3})"},
        {"{}", R"({"a":1})", R"({"a":1,"a":2})", R"({"a":1,"bb":2,"c":3,"d":4})"});
  check(
      R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"dependentRequired":{"a":["c"],"c":["b"]},"additionalProperties":false})",
      {"{}", R"({"b":1})", R"({"a":1,"b":1,"c":1})", R"({"b":1,"c":1})"},
      {R"({"a":1})", R"({"a":1,"c":1})", R"({"c":1})"});
}

TEST(JsonSchema, CombinesSchemas) {
  check(R"({"allOf":[{"type":"integer","minimum":3},{"maximum":5}]})", {"3", "5"}, {"2", "6", "\"a\""});
  check(R"({"anyOf":[{"type":"string","maxLength":1},{"type":"null"}]})", {"\"a\"", "null"}, {"\"ab\"", "1"});
  check(R"({"oneOf":[{"type":"integer"},{"type":"number","minimum":2}]})", {"1", "2.5"}, {"3", "1.5"});
  check(R"({"oneOf":[{"type":"object","required":["a"]},{"type":"object","required":["b"]}]})",
        {R"({"a":1})", R"({"b":1})"}, {"{}", R"({"a":1,"b":1})"});
  check(R"({"type":"string","not":{"enum":["no"]}})", {"\"nope\"", "\"n\""}, {"\"no\"", "\"\\u006eo\""});
  check(
      R"({"type":"object","properties":{"k":{"enum":["a","b"]},"v":{}},"required":["k"],"if":{"properties":{"k":{"const":"a"}}},"then":{"required":["v"]},"additionalProperties":false})",
      {R"({"k":"a","v":1})", R"({"k":"b"})", R"({"k":"b","v":2})"}, {R"({"k":"a"})"});
}

TEST(JsonSchema, FollowsReferences) {
  check(
      R"({"$ref":"#/$defs/list","$defs":{"list":{"anyOf":[{"type":"null"},{"type":"object","properties":{"next":{"$ref":"#/$defs/list"}},"required":["next"],"additionalProperties":false}]}}})",
      {"null", R"({"next":{"next":null}})"}, {"{}", R"({"next":1})"});
  check(R"({"properties":{"a":{"$ref":"#b"}},"$defs":{"x":{"$anchor":"b","type":"null"}}})",
        {R"({"a":null})"}, {R"({"a":1})"});
  EXPECT_NE(refusal(R"({"$ref":"http://elsewhere/schema"})").find("$ref"), std::string::npos);
  EXPECT_NE(refusal(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"), "");
}

TEST(JsonSchema, RefusesByNameWhatItCannotFollow) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"unevaluatedProperties":false,"allOf":[{}]})", "unevaluatedProperties"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"contains":{},"maxContains":2})", "maxContains"},
      {R"({"$dynamicRef":"#a"})", "$dynamicRef"},
      {R"j({"type":"string","pattern":"(?=a)"})j", "look-ahead"},
      {R"({"type":"string","format":"idn-email"})", "format"},
      {R"({"not":{"additionalProperties":false}})", "additionalProperties"},
      {R"({"type":"what"})", "type"},
  };
  for (const auto& [schema, name] : cases)
    EXPECT_NE(refusal(schema).find(name), std::string::npos) << schema << refusal(schema);
  EXPECT_EQ(
      refusal(R"({"title":"a","x-own":1,"default":2,"$comment":"c","format":"int32","type":"integer"})"), "");
}

TEST(JsonSchema, BoundsWhatIsHostile) {
  std::string any = "{}";
  for (int i = 0; i < 20; ++i) any = "{\"anyOf\":[" + any + ",{\"minLength\":" + std::to_string(i) + "}]}";
  EXPECT_NO_THROW(refusal(any));
  std::string all = "{\"allOf\":[";
  for (int i = 0; i < 40; ++i)
    all += std::string(i ? "," : "") + R"({"anyOf":[{"minLength":1},{"maxLength":3},{"pattern":"a"}]})";
  EXPECT_NE(refusal(all + "]}"), "");
  EXPECT_NO_THROW(refusal(R"({"$ref":"#"})"));
  EXPECT_NE(refusal(R"({"allOf":[{"$ref":"#"}],"enum":[1]})"), "");
  EXPECT_NE(refusal(R"({"type":"array","minItems":99999999})"), "");
  EXPECT_NO_THROW(refusal(R"({"type":"string","pattern":"^(([a-z])+.)+[A-Z]([a-z])+$","maxLength":2000})"));
  EXPECT_NE(refusal(std::string(1000, '[')), "");
}

}  // namespace
}  // namespace quire::grammar
