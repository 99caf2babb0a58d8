#include "text/pretokenizer.h"

#include "base/error.h"
#include "text/byte_level.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace quire {
namespace {

struct Part {
  ByteRange range;
  bool is_match;
};

// The matches and what lies between them, in order.
void add_gaps(const std::vector<ByteRange>& matches, size_t size, bool invert, std::vector<Part>& parts) {
  size_t done = 0;
  for (const ByteRange& match : matches) {
    if (done != match.begin) parts.push_back({{done, match.begin}, invert});
    parts.push_back({match, !invert});
    done = match.end;
  }
  if (done != size) parts.push_back({{done, size}, invert});
}

void keep(const ByteRange& part, size_t base, std::vector<ByteRange>& out) {
  if (part.begin != part.end) out.push_back({base + part.begin, base + part.end});
}

void join_parts(const std::vector<Part>& parts, SplitBehavior behavior, size_t base,
                std::vector<ByteRange>& out) {
  switch (behavior) {
    case SplitBehavior::isolated:
      for (const Part& part : parts) keep(part.range, base, out);
      return;
    case SplitBehavior::removed:
      for (const Part& part : parts) {
        if (!part.is_match) keep(part.range, base, out);
      }
      return;
    case SplitBehavior::contiguous:
      for (size_t i = 0; i < parts.size();) {
        ByteRange joined = parts[i].range;
        size_t next = i + 1;
        for (; next < parts.size() && parts[next].is_match == parts[i].is_match; ++next) {
          joined.end = parts[next].range.end;
        }
        keep(joined, base, out);
        i = next;
      }
      return;
    case SplitBehavior::merged_with_previous:  // a match goes to what is before it, unless that is a match,
                                               // too
      for (size_t i = 0; i < parts.size(); ++i) {
        ByteRange joined = parts[i].range;
        if (!parts[i].is_match && i + 1 < parts.size() && parts[i + 1].is_match)
          joined.end = parts[++i].range.end;
        keep(joined, base, out);
      }
      return;
    case SplitBehavior::merged_with_next:  // the last of a run of matches goes to what is behind it
      for (size_t i = 0; i < parts.size(); ++i) {
        ByteRange joined = parts[i].range;
        if (parts[i].is_match && i + 1 < parts.size() && !parts[i + 1].is_match)
          joined.end = parts[++i].range.end;
        keep(joined, base, out);
      }
      return;
  }
}

// Cuts every piece where find(piece, matches) says so.
template <class Find>
void cut(Pieces& pieces, SplitBehavior behavior, bool invert, Find&& find) {
  std::vector<ByteRange> out, matches;
  std::vector<Part> parts;
  out.reserve(pieces.ranges.size());
  for (size_t i = 0; i < pieces.ranges.size(); ++i) {
    const std::string_view piece = pieces[i];
    matches.clear();
    parts.clear();
    find(piece, matches);
    add_gaps(matches, piece.size(), invert, parts);
    join_parts(parts, behavior, pieces.ranges[i].begin, out);
  }
  pieces.ranges = std::move(out);
}

template <class Is>
void cut_at_chars(Pieces& pieces, SplitBehavior behavior, Is&& is) {
  cut(pieces, behavior, false, [&](std::string_view piece, std::vector<ByteRange>& matches) {
    for (size_t at = 0; at < piece.size();) {
      const CodePoint c = code_point_at(piece, at);
      if (is(c.value)) matches.push_back({at, at + c.bytes});
      at += c.bytes;
    }
  });
}

void cut_at_text(Pieces& pieces, SplitBehavior behavior, bool invert, std::string_view sought) {
  cut(pieces, behavior, invert, [&](std::string_view piece, std::vector<ByteRange>& matches) {
    for (size_t at = piece.find(sought); at != std::string_view::npos;
         at = piece.find(sought, at + sought.size())) {
      matches.push_back({at, at + sought.size()});
    }
  });
}

void cut_words(Pieces& pieces) {
  enum class Sort { space, word, other };
  const auto sort_of = [](char32_t c) {
    return is_word_char(c) ? Sort::word : is_white_space(c) ? Sort::space : Sort::other;
  };
  std::vector<ByteRange> out;
  for (size_t i = 0; i < pieces.ranges.size(); ++i) {
    const std::string_view piece = pieces[i];
    Sort previous = Sort::space;
    for (size_t at = 0; at < piece.size();) {
      const CodePoint c = code_point_at(piece, at);
      const Sort sort = sort_of(c.value);
      const size_t begin = pieces.ranges[i].begin + at;
      if (sort != Sort::space && sort == previous) {
        out.back().end = begin + c.bytes;
      } else if (sort != Sort::space) {
        out.push_back({begin, begin + c.bytes});
      }
      previous = sort;
      at += c.bytes;
    }
  }
  pieces.ranges = std::move(out);
}

// Writes every piece anew: change(piece, index, out) appends it.
template <class Change>
void rewrite(Pieces& pieces, Change&& change) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 4 + 16);
  std::vector<ByteRange> ranges;
  ranges.reserve(pieces.ranges.size());
  for (size_t i = 0; i < pieces.ranges.size(); ++i) {
    const size_t begin = text.size();
    change(pieces[i], i, text);
    if (text.size() > begin) ranges.push_back({begin, text.size()});
  }
  pieces.text = std::move(text);
  pieces.ranges = std::move(ranges);
}

void mark_spaces(Pieces& pieces, const Metaspace& step) {
  rewrite(pieces, [&](std::string_view piece, size_t index, std::string& out) {
    const bool has_mark = piece.starts_with(' ') || piece.starts_with(step.replacement);
    const bool first = pieces.at_start && index == 0 && pieces.ranges[0].begin == 0;
    if (!has_mark && (step.prepend == Metaspace::Prepend::always ||
                      (step.prepend == Metaspace::Prepend::first && first))) {
      out += step.replacement;
    }
    for (const char c : piece) {
      if (c == ' ') {
        out += step.replacement;
      } else {
        out += c;
      }
    }
  });
  if (step.split) cut_at_text(pieces, SplitBehavior::merged_with_next, false, step.replacement);
}

}  // namespace

struct Pretokenizer::Compiled {
  Regex regex;
};

Pretokenizer::Pretokenizer(std::vector<PretokenizerStep> steps) : steps_(std::move(steps)) {
  for (const PretokenizerStep& step : steps_) {
    auto& compiled = compiled_.emplace_back();
    const auto* metaspace = std::get_if<Metaspace>(&step);
    const auto* by_char = std::get_if<SplitByChar>(&step);
    const auto* split = std::get_if<SplitByPattern>(&step);
    if ((metaspace && metaspace->replacement.empty()) || (by_char && by_char->delimiter.empty()) ||
        (split && split->pattern.text.empty())) {
      throw Error("the tokenizer's pre-tokenizer looks for an empty text");
    }
    if (split) {
      if (split->pattern.is_regex)
        compiled = std::make_unique<Compiled>(Compiled{Regex(split->pattern.text)});
    } else if (const auto* level = std::get_if<ByteLevel>(&step); level != nullptr && level->use_regex) {
      compiled = std::make_unique<Compiled>(Compiled{Regex(std::string(kGpt2Pattern))});
    }
  }
}

Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

Pieces Pretokenizer::split(std::string text, bool at_start) const {
  struct Apply {
    Pieces& pieces;
    const Compiled* compiled;

    void cut_by_regex(SplitBehavior behavior, bool invert) {
      cut(pieces, behavior, invert, [&](std::string_view piece, std::vector<ByteRange>& matches) {
        compiled->regex.find_all(piece, matches);
      });
    }
    void operator()(const SplitByPattern& step) {
      if (compiled) {
        cut_by_regex(step.behavior, step.invert);
      } else {
        cut_at_text(pieces, step.behavior, step.invert, step.pattern.text);
      }
    }
    void operator()(const ByteLevel& step) {
      if (step.add_prefix_space) {
        rewrite(pieces, [](std::string_view piece, size_t, std::string& out) {
          if (!piece.starts_with(' ')) out += ' ';
          out += piece;
        });
      }
      if (compiled) cut_by_regex(SplitBehavior::isolated, false);
      rewrite(pieces,
              [](std::string_view piece, size_t, std::string& out) { append_bytes_as_chars(out, piece); });
    }
    void operator()(const Metaspace& step) { mark_spaces(pieces, step); }
    void operator()(const SplitDigits& step) {
      cut_at_chars(pieces, step.individual ? SplitBehavior::isolated : SplitBehavior::contiguous, is_numeric);
    }
    void operator()(const SplitPunctuation& step) {
      cut_at_chars(pieces, step.behavior,
                   [](char32_t c) { return is_ascii_punctuation(c) || is_punctuation(c); });
    }
    void operator()(const SplitWords&) { cut_words(pieces); }
    void operator()(const SplitWhitespace&) { cut_at_chars(pieces, SplitBehavior::removed, is_white_space); }
    void operator()(const SplitByChar& step) {
      cut_at_text(pieces, SplitBehavior::removed, false, step.delimiter);
    }
  };
  Pieces pieces{std::move(text), {}, at_start};
  if (!pieces.text.empty()) pieces.ranges.push_back({0, pieces.text.size()});
  for (size_t i = 0; i < steps_.size(); ++i) std::visit(Apply{pieces, compiled_[i].get()}, steps_[i]);
  return pieces;
}

}  // namespace quire
