#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <chrono>

#include <pcre2.h>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
constexpr uint32_t kMatchSteps = 20'000'000;  // for one match; real patterns need a few per character
constexpr uint32_t kHeapKiB = 512 << 10;
constexpr size_t kJitStackBytes = 32 << 20;
constexpr auto kMaxTime = std::chrono::seconds(20);  // for one text
constexpr uint32_t kMatchesPerClockRead = 64;

template <auto free>
struct Free {
  template <class T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

// What matching needs besides the pattern: one per thread, reused.
struct Scratch {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  JitStack stack{pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};

  Scratch() {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMatchSteps);
    pcre2_set_heap_limit(context.get(), kHeapKiB);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

Scratch& scratch() {
  thread_local Scratch instance;
  return instance;
}

std::string message(int error) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

std::string shortened(const std::string& pattern) {
  if (pattern.size() <= 120) return pattern;
  return replace_broken_utf8(std::string_view(pattern).substr(0, 120)) + "...";
}

}  // namespace

struct Regex::State {
  std::string pattern;
  Code code;
};

Regex::Regex(const std::string& pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    throw Error("a regular expression of the tokenizer has {} bytes; at most {} are allowed", pattern.size(),
                kMaxPatternBytes);
  }
  const std::string translated = oniguruma_to_pcre2(pattern);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t where = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &where,
                          context.get()));
  if (!code) {
    throw Error("the tokenizer's regular expression '{}' cannot be used: {} (near byte {})",
                shortened(pattern), message(error), where);
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without it the interpreter does the same, slower
  state_ = std::make_unique<State>(State{pattern, std::move(code)});
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

void Regex::find_all(std::string_view text, std::vector<ByteRange>& matches) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  Scratch& s = scratch();
  const auto started = std::chrono::steady_clock::now();
  uint32_t until_clock = kMatchesPerClockRead;
  size_t at = 0;
  size_t last_end = std::string_view::npos;
  while (at <= text.size()) {
    if (--until_clock == 0) {
      until_clock = kMatchesPerClockRead;
      if (std::chrono::steady_clock::now() - started > kMaxTime) {
        throw Error("the tokenizer's regular expression '{}' takes too long on a text of {} bytes",
                    shortened(state_->pattern), text.size());
      }
    }
    int found = pcre2_match(state_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, s.data.get(),
                            s.context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its frames on the heap
      found = pcre2_match(state_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          s.data.get(), s.context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) {
      throw Error("the tokenizer's regular expression '{}' cannot be matched on a text of {} bytes: {}",
                  shortened(state_->pattern), text.size(), message(found));
    }
    const size_t* ends = pcre2_get_ovector_pointer(s.data.get());
    const ByteRange match{ends[0], ends[1]};
    if (match.begin > match.end || match.begin < at) {
      throw Error("the tokenizer's regular expression '{}' matches backwards", shortened(state_->pattern));
    }
    const bool empty = match.begin == match.end;
    if (!empty || match.end != last_end) matches.push_back(match);
    last_end = match.end;
    at = match.end;
    if (empty) at += at < text.size() ? utf8_length(text[at]) : 1;
  }
}

std::string replace_all(std::string_view text, const TextPattern& pattern, const Regex* regex,
                        std::string_view content) {
  std::string out;
  size_t done = 0;
  const auto replace = [&](size_t begin, size_t end) {
    out.append(text.substr(done, begin - done)).append(content);
    if (out.size() > max_grown_bytes(text.size())) {
      throw Error("the tokenizer makes a text of {} bytes far too long", text.size());
    }
    done = end;
  };
  if (regex != nullptr) {
    std::vector<ByteRange> matches;
    regex->find_all(text, matches);
    for (const ByteRange& match : matches) replace(match.begin, match.end);
  } else {
    const std::string_view sought = pattern.text;
    for (size_t at = text.find(sought); at != std::string_view::npos;
         at = text.find(sought, at + sought.size())) {
      replace(at, at + sought.size());
    }
  }
  return out.append(text.substr(done));
}

}  // namespace quire
