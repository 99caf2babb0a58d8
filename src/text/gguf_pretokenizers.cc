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
constexpr const char* kContractions = R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))";
constexpr const char* kSpaces = R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kCjk = "[一-龥\u0800-一가-\uD7FF]+";

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

const char* deepseek_letters() {
  return "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-"
         "ᵷᵹ-"
         "ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗ"
         "ὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-"
         "ꮿﬀ-"
         "ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
         "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
}

std::string kimi() {
  const std::string upper = R"((?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]))";
  const std::string lower = R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}]))";
  return fmt::format(
      R"([\p{{Han}}]+|{0}{1}*{2}+{3}|{0}{1}+{2}*{3}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{4})", kLead,
      upper, lower, tail(), kSpaces);
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
         return Patterns{R"([\r\n])", deepseek_letters(), "\\s?[!-/:-~！-／：-～‘-‟　-。]+", R"(\s+$)",
                         kCjk,        R"(\p{N}+)"};
       }},
      {{"deepseek-coder"},
       [] {
         return Patterns{R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjk, kDigit};
       }},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
       [] {
         return Patterns{R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+", deepseek_words()};
       }},
      {{"tekken"}, [] { return Patterns{by_case(kLead, kNotLower, kNotUpper, "", kDigit)}; }, true, true},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"},
       [] { return Patterns{by_case(kLead, kNotLower, kNotUpper, tail(), R"(\p{N}{1,3})")}; }},
      {{"granite-embed-multi-97m"},
       [] {
         return Patterns{
             by_case(kLead, R"((?![a-z])[\p{L}\p{M}])", R"((?![A-Z])[\p{L}\p{M}])", tail(), R"(\p{N}{1,3})")};
       },
       true},
      {{"tiny_aya", "cohere2moe"},
       [] {
         return Patterns{R"(\d{1,3}(?=(?:\d{3})*\b))",
                         by_case(kLead, kUpperClass, kLowerClass, tail(), R"(\p{N}{1,3})")};
       }},
      {{"youtu"},
       [] {
         return Patterns{
             "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-"
             "ヿ]"
             "+",
             by_case(kLead, kUpperClass, kLowerClass, tail(), kDigit)};
       },
       true},
      {{"bloom", "poro-chat", "gpt3-finnish"}, [] { return Patterns{" ?[^(\\s|.,!?…。，、।۔،)]+"}; }},
      {{"viking"},
       [] {
         return Patterns{" ?[^(\\s|.,!?…。，、।۔،)]+", kDigit};
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
         return Patterns{R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))",
                         "[一-鿿㐀-䶿豈-\uFAFF\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2FDFเ-\u0E7F\u0E80-\u0EFFក-\u17FFက-"
                         "႟ꩠ-"
                         "ꩿꧠ-"
                         "\uA9FF가-\uD7AFᄀ-ᇿ]+",
                         deepseek_words()};
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
      {"deepseek-llm",
       {isolate(R"([\r\n])"), isolate(deepseek_letters()), isolate("\\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        isolate(R"(\s+$)"), isolate(kCjk), isolate(kDigit), ByteLevel{}}},
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
