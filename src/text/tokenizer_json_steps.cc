#include "text/tokenizer_json_steps.h"

#include <functional>
#include <unordered_map>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMaxSteps = 128;

// Calls read(step) for a component and for all inside its sequences.
void for_each_step(const Json& json, const char* list, const char* what,
                   const std::function<void(const Json&)>& read) {
  size_t count = 0;
  const std::function<void(const Json&)> walk = [&](const Json& step) {
    if (step.is_null()) return;
    if (step.at("type") == "Sequence") {
      for (const Json& inner : step.at(list)) walk(inner);
      return;
    }
    if (++count > kMaxSteps) throw Error("the tokenizer's {} has more than {} steps", what, kMaxSteps);
    read(step);
  };
  walk(json);
}

[[noreturn]] void unknown_component(const char* what, const std::string& type) {
  throw Error("the tokenizer's {} '{}' is not supported", what, type);
}

std::string one_char(const Json& json, const char* key) {
  std::string text = json.at(key).get<std::string>();
  if (text.empty() || utf8_length(text[0]) != text.size()) {
    throw Error("the tokenizer's '{}' should be one character, not '{}'", key, text);
  }
  return text;
}

TextPattern read_pattern(const Json& json) {
  if (json.contains("String")) return {json.at("String").get<std::string>(), false};
  return {json.at("Regex").get<std::string>(), true};
}

SplitBehavior read_behavior(const std::string& name) {
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  unknown_component("split behavior", name);
}

std::string decode_base64(const std::string& text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) throw Error("the tokenizer's precompiled character map is not base64");
    bits = bits << 6 | uint32_t(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  return bytes;
}

void read_bert_normalizer(const Json& step, std::vector<NormalizerStep>& steps) {
  const bool lowercase = step.value("lowercase", true);
  const Json accents = step.value("strip_accents", Json());
  steps.emplace_back(BertCleanup{step.value("clean_text", true), step.value("handle_chinese_chars", true)});
  if (accents.is_null() ? lowercase : accents.get<bool>()) {
    steps.emplace_back(UnicodeForm{UnicodeForm::Form::nfd});
    steps.emplace_back(StripAccents{StripAccents::Marks::nonspacing});
  }
  if (lowercase) steps.emplace_back(Lowercase{});
}

Metaspace::Prepend read_prepend(const Json& step) {
  if (step.contains("add_prefix_space") && step.at("add_prefix_space") == false)
    return Metaspace::Prepend::never;
  const std::string scheme = step.value("prepend_scheme", "always");
  if (scheme == "always") return Metaspace::Prepend::always;
  if (scheme == "first") return Metaspace::Prepend::first;
  if (scheme == "never") return Metaspace::Prepend::never;
  unknown_component("prepend scheme", scheme);
}

void read_template(const Json& step, AroundText& around) {
  std::unordered_map<std::string, std::vector<TokenId>> specials;
  for (const auto& [name, special] : step.at("special_tokens").items()) {
    specials[name] = special.at("ids").get<std::vector<TokenId>>();
  }
  std::vector<TokenId> before, after;
  bool seen_text = false;
  for (const Json& part : step.at("single")) {
    if (part.contains("Sequence")) {
      if (seen_text) throw Error("the tokenizer's template repeats the text");
      seen_text = true;
      continue;
    }
    const std::string name = part.at("SpecialToken").at("id").get<std::string>();
    const auto found = specials.find(name);
    if (found == specials.end()) throw Error("the tokenizer's template names an unknown token '{}'", name);
    auto& side = seen_text ? after : before;
    side.insert(side.end(), found->second.begin(), found->second.end());
  }
  if (!seen_text) throw Error("the tokenizer's template leaves out the text");
  around.prefix.insert(around.prefix.begin(), before.begin(), before.end());
  around.suffix.insert(around.suffix.end(), after.begin(), after.end());
}

}  // namespace

std::vector<NormalizerStep> read_normalizer(const Json& json) {
  std::vector<NormalizerStep> steps;
  for_each_step(json, "normalizers", "normalizer", [&](const Json& step) {
    const std::string type = step.at("type").get<std::string>();
    if (type == "NFC") {
      steps.emplace_back(UnicodeForm{UnicodeForm::Form::nfc});
    } else if (type == "NFD") {
      steps.emplace_back(UnicodeForm{UnicodeForm::Form::nfd});
    } else if (type == "NFKC") {
      steps.emplace_back(UnicodeForm{UnicodeForm::Form::nfkc});
    } else if (type == "NFKD") {
      steps.emplace_back(UnicodeForm{UnicodeForm::Form::nfkd});
    } else if (type == "Replace") {
      steps.emplace_back(
          ReplaceText{read_pattern(step.at("pattern")), step.at("content").get<std::string>()});
    } else if (type == "Prepend") {
      steps.emplace_back(PrependText{step.at("prepend").get<std::string>()});
    } else if (type == "Lowercase") {
      steps.emplace_back(Lowercase{});
    } else if (type == "Strip") {
      steps.emplace_back(StripSpaces{step.at("strip_left").get<bool>(), step.at("strip_right").get<bool>()});
    } else if (type == "StripAccents") {
      steps.emplace_back(StripAccents{});
    } else if (type == "Nmt") {
      steps.emplace_back(NmtCleanup{});
    } else if (type == "ByteLevel") {
      steps.emplace_back(BytesToChars{});
    } else if (type == "BertNormalizer") {
      read_bert_normalizer(step, steps);
    } else if (type == "Precompiled") {
      steps.emplace_back(Charsmap{decode_base64(step.at("precompiled_charsmap").get<std::string>()),
                                  Charsmap::Match::grapheme});
    } else {
      unknown_component("normalizer", type);
    }
  });
  return steps;
}

std::vector<PretokenizerStep> read_pretokenizer(const Json& json) {
  std::vector<PretokenizerStep> steps;
  for_each_step(json, "pretokenizers", "pre-tokenizer", [&](const Json& step) {
    const std::string type = step.at("type").get<std::string>();
    if (type == "Split") {
      steps.emplace_back(SplitByPattern{read_pattern(step.at("pattern")),
                                        read_behavior(step.at("behavior").get<std::string>()),
                                        step.value("invert", false)});
    } else if (type == "ByteLevel") {
      steps.emplace_back(ByteLevel{step.value("add_prefix_space", true), step.value("use_regex", true)});
    } else if (type == "Metaspace") {
      steps.emplace_back(
          Metaspace{read_prepend(step), one_char(step, "replacement"), step.value("split", true)});
    } else if (type == "Digits") {
      steps.emplace_back(SplitDigits{step.value("individual_digits", false)});
    } else if (type == "Punctuation") {
      steps.emplace_back(SplitPunctuation{read_behavior(step.value("behavior", "Isolated"))});
    } else if (type == "Whitespace") {
      steps.emplace_back(SplitWords{});
    } else if (type == "WhitespaceSplit") {
      steps.emplace_back(SplitWhitespace{});
    } else if (type == "CharDelimiterSplit") {
      steps.emplace_back(SplitByChar{one_char(step, "delimiter")});
    } else if (type == "BertPreTokenizer") {
      steps.emplace_back(SplitWhitespace{});
      steps.emplace_back(SplitPunctuation{});
    } else {
      unknown_component("pre-tokenizer", type);
    }
  });
  return steps;
}

std::vector<DecoderStep> read_decoder(const Json& json) {
  std::vector<DecoderStep> steps;
  for_each_step(json, "decoders", "decoder", [&](const Json& step) {
    const std::string type = step.at("type").get<std::string>();
    if (type == "ByteLevel") {
      steps.emplace_back(DecodeByteLevel{});
    } else if (type == "Metaspace") {
      const bool drop = read_prepend(step) != Metaspace::Prepend::never;
      steps.emplace_back(DecodeMetaspace{one_char(step, "replacement"), drop});
    } else if (type == "ByteFallback") {
      steps.emplace_back(DecodeByteFallback{});
    } else if (type == "Fuse") {
      steps.emplace_back(DecodeFuse{});
    } else if (type == "Strip") {
      steps.emplace_back(DecodeStrip{one_char(step, "content"), step.at("start").get<uint32_t>(),
                                     step.at("stop").get<uint32_t>()});
    } else if (type == "Replace") {
      steps.emplace_back(
          DecodeReplace{read_pattern(step.at("pattern")), step.at("content").get<std::string>()});
    } else if (type == "WordPiece") {
      steps.emplace_back(DecodeWordPiece{step.value("prefix", "##"), step.value("cleanup", true)});
    } else if (type == "BPEDecoder") {
      steps.emplace_back(DecodeSuffix{step.value("suffix", "</w>")});
    } else {
      unknown_component("decoder", type);
    }
  });
  return steps;
}

AroundText read_post_processor(const Json& json) {
  AroundText around;
  for_each_step(json, "processors", "post-processor", [&](const Json& step) {
    const std::string type = step.at("type").get<std::string>();
    if (type == "TemplateProcessing") {
      read_template(step, around);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      around.prefix.insert(around.prefix.begin(), step.at("cls").at(1).get<TokenId>());
      around.suffix.push_back(step.at("sep").at(1).get<TokenId>());
    } else if (type != "ByteLevel") {  // which only moves offsets
      unknown_component("post-processor", type);
    }
  });
  return around;
}

}  // namespace quire
