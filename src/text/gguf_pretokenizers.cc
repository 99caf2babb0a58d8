#include "text/gguf_pretokenizers.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/regex.h"

namespace quire {
namespace {

using Patterns = std::vector<std::string>;

constexpr const char* kDigit = R"(\p{N})";
// Groups of three from the right; what stands before a number goes with its first group.
constexpr const char* kDigitsFromRight = R"(\P{N}*\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";
constexpr const char* kContractions = R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))";
constexpr const char* kSpaces = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kCjk = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+";
constexpr const char* kChineseJapanese = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr const char* kAsian =
    "[\u4E00-\u9FFF\u3400-\u4DBF\u8C48-\uFAFF\u3040-\u309F\u30A0-\u30FF\uFF65-\uFF9F\u2F00-\u2FDF"
    "\u0E40-\u0E7F\u0E80-\u0EFF\u1780-\u17FF\u1000-\u109F\uAA60-\uAA7F\uA9E0-\uA9FF\uAC00-\uD7AF"
    "\u1100-\u11FF]+";
constexpr const char* kYoutuScripts =
    "[\uAC00-\uD7A3\u3131-\u318E]+|[\uFF01\u2026\u201C\u201D\u2018\u2019\u2014\uFF1A\uFF1B\uFF0C"
    "\u3001-\u303F\uFE30-\uFE4F]+|[\u3105-\u312F]+|[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr const char* kBloomWords = " ?[^(\\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+";
constexpr const char* kDeepseekPunctuation =
    "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+";
constexpr const char* kDeepseekLetters =
    "\\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF"
    "\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5"
    "\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA"
    "\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45"
    "\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-"
    "\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107"
    "\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F"
    "\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D"
    "\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17"
    "\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB"
    "\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+";

// Letters but not a-z, and letters but not A-Z. GGUF readers know no case beyond ASCII.
constexpr const char* kNotLower = R"([^\P{L}a-z])";
constexpr const char* kNotUpper = R"([^\P{L}A-Z])";

std::string gpt2() {
  return std::string(kGpt2Pattern);
}

// Contractions, words, digits as `digits` says, punctuation, spaces: the family of GPT-4's pattern.
std::string gpt4(std::string_view digits) {
  return fmt::format(R"({}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{})",
                     kContractions, digits, kSpaces);
}

// Words cut where lower case turns to upper: the family of GPT-4o's pattern.
std::string by_case(std::string_view lead, std::string_view upper, std::string_view lower,
                    std::string_view tail, std::string_view digits) {
  return fmt::format(R"({0}{1}*{2}+{3}|{0}{1}+{2}*{3}|{4}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{5})", lead, upper,
                     lower, tail, digits, kSpaces);
}

constexpr const char* kLead = R"([^\r\n\p{L}\p{N}]?)";
constexpr const char* kAnyCase = R"([\p{L}\p{M}])";
constexpr const char* kUpperClass = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
constexpr const char* kLowerClass = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";

std::string tail() {
  return std::string(kContractions) + "?";
}

std::string deepseek_words() {
  return std::string(
             R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)") +
         R"(| ?[\p{P}\p{S}]+[\r\n]*|)" + kSpaces;
}

// Readers of GGUF take a space for nothing but a space: `[class]+` without the spaces in it.
std::string without_spaces(std::string_view pattern) {
  const size_t open = pattern.find('[');
  const std::string_view items = pattern.substr(open, pattern.rfind(']') + 1 - open);
  return fmt::format(R"({}(?:(?!\s){})+)", pattern.substr(0, open), items);
}

std::string kimi() {
  return fmt::format(
      R"([\p{{Han}}]+|{}(?:(?!\p{{Han}})\p{{L}})+{}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{})", kLead,
      tail(), kSpaces);
}

std::string jais2() {
  std::string pattern = gpt4(R"(\p{N}{1,3})");
  pattern.resize(pattern.size() - std::string_view(R"(\s+(?!\S)|\s+)").size());
  for (const int run : {512, 256, 128, 64, 32, 16, 8, 4}) pattern += fmt::format(R"(\s{{{}}}(?!\S)|)", run);
  return pattern + R"(\s{1,2}(?!\S)|\s{1})";
}

struct Entry {
  std::vector<const char*> names;
  Patterns (*patterns)();
  bool ignore_merges = false;
  bool add_bos = false;
  bool byte_level = true;
};

// Facts about files in the world: which name means which cuts. Of names that mean the same, the first is
// written. An empty name in the file means "default".
const std::vector<Entry>& entries() {
  static const std::vector<Entry> table = {
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum",
        "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling", "jina-v1-en",
        "jina-v2-code", "roberta-bpe"},
       [] { return Patterns{gpt2()}; }},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"},
       [] { return Patterns{gpt4(R"(\p{N}{1,3})")}; },
       true,
       true},
      {{"smaug-bpe", "dbrx", "chatglm-bpe", "glm4"}, [] { return Patterns{gpt4(R"(\p{N}{1,3})")}; }},
      {{"qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2", "solar-open", "kormo",
        "f2llmv2"},
       [] { return Patterns{gpt4(kDigit)}; }},
      {{"qwen35"},
       [] {
         return Patterns{fmt::format(
             R"({}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{})",
             kContractions, kSpaces)};
       }},
      {{"minicpm5"},
       [] {
         return Patterns{R"(\p{N}{1,3})", gpt4(R"(\p{N}+)")};
       },
       true},
      {{"jais-2"}, [] { return Patterns{jais2()}; }},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
       [] {
         return Patterns{kDigit, gpt2()};
       }},
      {{"falcon"},
       [] {
         return Patterns{R"([\p{P}\$\+<=>\^~\|`]+)", gpt2(), "[0-9][0-9][0-9]"};
       }},
      {{"default"},
       [] {
         return Patterns{R"([\p{P}\$\+<=>\^~\|]+)", gpt2(), R"(\p{N}+)", "[0-9][0-9][0-9]"};
       }},
      {{"deepseek-llm"},
       [] {
         return Patterns{R"([\r\n])", kDeepseekLetters,     without_spaces(kDeepseekPunctuation),
                         R"(\s+$)",   without_spaces(kCjk), R"(\p{N}+)"};
       }},
      {{"deepseek-coder"},
       [] {
         return Patterns{R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", without_spaces(kCjk), kDigit};
       }},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
       [] {
         return Patterns{R"(\p{N}{1,3})", kChineseJapanese, deepseek_words()};
       }},
      {{"tekken"}, [] { return Patterns{by_case(kLead, kNotLower, kNotUpper, "", kDigit)}; }, true, true},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"},
       [] { return Patterns{by_case(kLead, kNotLower, kNotUpper, tail(), R"(\p{N}{1,3})")}; }},
      {{"granite-embed-multi-97m"},
       [] {
         return Patterns{by_case(kLead, R"((?:(?![a-z])[\p{L}\p{M}]))", R"((?:(?![A-Z])[\p{L}\p{M}]))",
                                 tail(), R"(\p{N}{1,3})")};
       },
       true},
      {{"tiny_aya", "cohere2moe"},
       [] {
         return Patterns{kDigitsFromRight, by_case(kLead, kAnyCase, kAnyCase, tail(), R"(\p{N}{1,3})")};
       }},
      {{"youtu"},
       [] {
         return Patterns{kYoutuScripts, by_case(kLead, kAnyCase, kAnyCase, tail(), kDigit)};
       },
       true},
      {{"bloom", "poro-chat", "gpt3-finnish"}, [] { return Patterns{kBloomWords}; }},
      {{"viking"},
       [] {
         return Patterns{kBloomWords, kDigit};
       }},
      {{"chameleon"},
       [] {
         return Patterns{"<sentinel:[0-9]+>",       "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                         R"(([\t\n]|    |  ))",     kDigit,
                         R"([\p{P}!-/:-@\[-`{-~])", gpt2()};
       },
       false,
       true},
      {{"kimi-k2"}, [] { return Patterns{kimi()}; }},
      {{"superbpe"},
       [] {
         return Patterns{R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"};
       }},
      {{"bailingmoe", "bailingmoe2", "llada-moe"},
       [] {
         return Patterns{
             R"('(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
             R"(|\s*[\r\n]|\s+(?!\S)|\s+)"};
       }},
      {{"seed-coder"},
       [] {
         return Patterns{
             fmt::format(R"({}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{})",
                         kContractions, kSpaces)};
       }},
      {{"afmoe"},
       [] {
         return Patterns{kDigitsFromRight, kAsian, deepseek_words()};
       }},
      {{"laguna"},
       [] {
         return Patterns{R"([^\n]+|[\n]+)", gpt4(kDigit)};
       }},
      {{"exaone-moe"},
       [] {
         return Patterns{fmt::format(
             R"({}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)",
             kContractions)};
       }},
      {{"gemma4", "granite-embed-multi-311m"},
       [] { return Patterns{R"([^\n]+|[\n]+)"}; },
       false,
       true,
       false},
      {{"sarvam-moe"}, [] { return Patterns{R"([^\n]+|[\n]+)"}; }, false, false, false},
  };
  return table;
}

SplitByPattern isolate(std::string pattern) {
  return {{std::move(pattern), true}, SplitBehavior::isolated, false};
}

std::vector<PretokenizerStep> steps_of(const Entry& entry) {
  std::vector<PretokenizerStep> steps;
  for (std::string& pattern : entry.patterns()) steps.push_back(isolate(std::move(pattern)));
  if (entry.byte_level) steps.push_back(ByteLevel{});
  return steps;
}

// One spelling for pipelines that cut the same way.
std::vector<PretokenizerStep> canonical(const std::vector<PretokenizerStep>& steps) {
  std::vector<PretokenizerStep> out;
  for (const PretokenizerStep& step : steps) {
    if (const auto* level = std::get_if<ByteLevel>(&step)) {
      if (level->use_regex) out.push_back(isolate(gpt2()));
      out.push_back(ByteLevel{level->add_prefix_space, false});
    } else if (const auto* digits = std::get_if<SplitDigits>(&step); digits && digits->individual) {
      out.push_back(isolate(kDigit));
    } else if (const auto* split = std::get_if<SplitByPattern>(&step); split && split->pattern.is_regex) {
      SplitByPattern copy = *split;
      std::string& text = copy.pattern.text;
      text = replace_all(text, {"\r", false}, nullptr, "\\r");
      text = replace_all(text, {"\n", false}, nullptr, "\\n");
      text = replace_all(text, {"(?i:'s|'t|'re|'ve|'m|'ll|'d)", false}, nullptr, kContractions);
      text = replace_all(text, {R"(\p{N}{1}|)", false}, nullptr, R"(\p{N}|)");
      out.push_back(std::move(copy));
    } else {
      out.push_back(step);
    }
  }
  return out;
}

// Pipelines as models ship them, where GGUF readers cut a little otherwise under the name.
struct Original {
  const char* name;
  std::vector<PretokenizerStep> steps;
};

const std::vector<Original>& originals() {
  static const std::vector<Original> list = {
      {"tekken", {isolate(by_case(kLead, kUpperClass, kLowerClass, "", kDigit)), ByteLevel{}}},
      {"gpt-4o", {isolate(by_case(kLead, kUpperClass, kLowerClass, tail(), R"(\p{N}{1,3})")), ByteLevel{}}},
      {"falcon",
       {SplitPunctuation{SplitBehavior::contiguous}, isolate(gpt2()), ByteLevel{}, SplitDigits{false},
        isolate("[0-9][0-9][0-9]")}},
      {"deepseek-coder",
       {isolate(R"([\r\n])"), isolate(R"(\s?\p{L}+)"), isolate(R"(\s?\p{P}+)"), isolate(kCjk),
        isolate(kDigit), ByteLevel{}}},
      {"deepseek-llm",
       {isolate(R"([\r\n])"), isolate(kDeepseekLetters), isolate(kDeepseekPunctuation), isolate(R"(\s+$)"),
        isolate(kCjk), isolate(kDigit), ByteLevel{}}},
  };
  return list;
}

}  // namespace

GgufPretokenizer find_gguf_pretokenizer(const std::string& name) {
  const std::string sought = name.empty() ? "default" : name;
  for (const Entry& entry : entries()) {
    if (std::find(entry.names.begin(), entry.names.end(), sought) == entry.names.end()) continue;
    return {steps_of(entry), entry.ignore_merges, entry.add_bos, entry.byte_level};
  }
  std::vector<const char*> known;
  for (const Entry& entry : entries()) known.insert(known.end(), entry.names.begin(), entry.names.end());
  std::sort(known.begin(), known.end(), [](std::string_view a, std::string_view b) { return a < b; });
  throw Error("the model's pre-tokenizer '{}' is not known; known are {}", name, fmt::join(known, ", "));
}

std::optional<std::string> name_gguf_pretokenizer(const std::vector<PretokenizerStep>& steps,
                                                  bool ignore_merges) {
  const std::vector<PretokenizerStep> sought = canonical(steps);
  for (const Original& original : originals()) {
    if (canonical(original.steps) != sought) continue;
    if (find_gguf_pretokenizer(original.name).ignore_merges == ignore_merges) return original.name;
  }
  for (const Entry& entry : entries()) {
    if (entry.ignore_merges == ignore_merges && canonical(steps_of(entry)) == sought)
      return entry.names.front();
  }
  return std::nullopt;
}

}  // namespace quire
