#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/jinja/jinja.h"

// What the tests of templates render.

namespace quire::jinja {

inline Value plain(std::string text) {
  return make_string(nullptr, std::move(text), Origin::plain);
}

inline Value dict(std::vector<std::pair<Value, Value>> entries) {
  return make_dict(nullptr, std::move(entries));
}

inline Variables some_variables() {
  Variables variables;
  variables.emplace_back("user", plain("Ann"));
  variables.emplace_back("bos", make_string(nullptr, "<s>"));
  variables.emplace_back("word", make_string(nullptr, "été 日本"));
  variables.emplace_back("people",
                         make_sequence(nullptr, {dict({{plain("name"), plain("Ann")}, {plain("age"), 30}}),
                                                 dict({{plain("name"), plain("bob")}, {plain("age"), 20}})}));
  return variables;
}

inline std::string render(std::string_view source) {
  return Template(source).render(some_variables()).text;
}

inline std::string failure_of(std::string_view source, const Limits& limits = {}) {
  try {
    Template(source).render(some_variables(), limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "(it did not fail)";
}

// The text with its plain parts in «».
inline std::string marked(std::string_view source) {
  const MarkedText result = Template(source).render(some_variables());
  std::string out;
  size_t done = 0;
  for (const ByteRange& range : result.plain) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_TRUE(done < range.begin || range.begin == 0) << "ranges touch";
    out += result.text.substr(done, range.begin - done) + "«" +
           result.text.substr(range.begin, range.end - range.begin) + "»";
    done = range.end;
  }
  return out + result.text.substr(done);
}

struct JinjaCase {
  std::string_view source;
  std::string_view expected;
};

inline void expect_all(const std::vector<JinjaCase>& cases) {
  for (const JinjaCase& each : cases) EXPECT_EQ(render(each.source), each.expected) << each.source;
}
}  // namespace quire::jinja
