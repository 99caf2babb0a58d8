#include "text/token_decoder.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace quire {
namespace {

using Piece = TokenDecoder::Piece;
using Stage = TokenDecoder::Stage;
using Parts = std::vector<Piece>;

// From here on the pieces are parts of one text: bytes that belong together may come in several.
class ByteLevelStage : public Stage {
 public:
  void push(Piece piece, Parts& out) override {
    if (!piece.verbatim) {
      if (auto bytes = chars_to_bytes(piece.text)) piece.text = std::move(*bytes);
    }
    out.push_back({stream_.push(piece.text)});
  }
  void finish(Parts& out) override { out.push_back({stream_.finish()}); }

 private:
  Utf8Stream stream_;
};

class MetaspaceStage : public Stage {
 public:
  MetaspaceStage(const DecodeMetaspace& step, bool fused) : step_(step), fused_(fused) {}
  void push(Piece piece, Parts& out) override {
    const bool drop = first_ && step_.drop_in_first;
    first_ = first_ && fused_;
    if (!piece.verbatim) {
      piece.text = replace_all(piece.text, {step_.replacement, false}, nullptr, drop ? "" : " ");
    }
    out.push_back(std::move(piece));
  }

 private:
  const DecodeMetaspace& step_;
  bool fused_;
  bool first_ = true;
};

// Whether the bytes of a run make sense is known only at its end.
class ByteFallbackStage : public Stage {
 public:
  void push(Piece piece, Parts& out) override {
    if (const auto byte = byte_of(piece)) {
      run_.push_back(*byte);
      return;
    }
    finish(out);
    out.push_back(std::move(piece));
  }
  void finish(Parts& out) override {
    if (run_.empty()) return;
    if (is_valid_utf8(run_)) {
      out.push_back({run_});
    } else {
      for (size_t i = 0; i < run_.size(); ++i) out.push_back({std::string(kReplacementChar)});
    }
    run_.clear();
  }

 private:
  static std::optional<char> byte_of(const Piece& piece) {
    const std::string& text = piece.text;
    if (piece.verbatim || text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
    int value = 0;
    const auto result = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
    if (result.ptr != text.data() + 5 || value < 0) return std::nullopt;
    return static_cast<char>(value);
  }
  std::string run_;
};

class StripStage : public Stage {
 public:
  explicit StripStage(const DecodeStrip& step) : step_(step) {}
  void push(Piece piece, Parts& out) override {
    std::string_view rest = piece.text;
    for (uint32_t i = 0; i < step_.start && rest.starts_with(step_.content); ++i) {
      rest.remove_prefix(step_.content.size());
    }
    for (uint32_t i = 0; i < step_.stop && rest.ends_with(step_.content); ++i) {
      rest.remove_suffix(step_.content.size());
    }
    out.push_back({std::string(rest), piece.verbatim});
  }

 private:
  const DecodeStrip& step_;
};

// The start of one text that comes in parts.
class StripStartStage : public Stage {
 public:
  explicit StripStartStage(const DecodeStrip& step) : step_(step), left_(step.start) {}
  void push(Piece piece, Parts& out) override {
    std::string_view rest = piece.text;
    for (; left_ > 0 && rest.starts_with(step_.content); --left_) rest.remove_prefix(step_.content.size());
    if (!rest.empty()) left_ = 0;
    out.push_back({std::string(rest), piece.verbatim});
  }

 private:
  const DecodeStrip& step_;
  uint32_t left_;
};

class ReplaceStage : public Stage {
 public:
  ReplaceStage(const DecodeReplace& step, const Regex* regex) : step_(step), regex_(regex) {}
  void push(Piece piece, Parts& out) override {
    if (!piece.verbatim) piece.text = replace_all(piece.text, step_.pattern, regex_, step_.content);
    out.push_back(std::move(piece));
  }

 private:
  const DecodeReplace& step_;
  const Regex* regex_;
};

class WordPieceStage : public Stage {
 public:
  explicit WordPieceStage(const DecodeWordPiece& step) : step_(step) {}
  void push(Piece piece, Parts& out) override {
    if (!first_) {
      if (!step_.prefix.empty() && piece.text.starts_with(step_.prefix)) {
        piece.text.erase(0, step_.prefix.size());
      } else {
        piece.text.insert(piece.text.begin(), ' ');
      }
    }
    first_ = false;
    if (step_.cleanup) piece.text = cleaned(std::move(piece.text));
    out.push_back(std::move(piece));
  }

 private:
  static std::string cleaned(std::string text) {
    static constexpr std::pair<const char*, const char*> kRules[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kRules) text = replace_all(text, {from, false}, nullptr, to);
    return text;
  }
  const DecodeWordPiece& step_;
  bool first_ = true;
};

// The last token is treated otherwise: each waits for the next.
class SuffixStage : public Stage {
 public:
  explicit SuffixStage(const DecodeSuffix& step) : step_(step) {}
  void push(Piece piece, Parts& out) override {
    if (held_) emit(" ", out);
    held_ = std::move(piece);
  }
  void finish(Parts& out) override {
    if (held_) emit("", out);
    held_.reset();
  }

 private:
  void emit(std::string_view replacement, Parts& out) {
    if (!held_->verbatim) held_->text = replace_all(held_->text, {step_.suffix, false}, nullptr, replacement);
    out.push_back(std::move(*held_));
  }
  const DecodeSuffix& step_;
  std::optional<Piece> held_;
};

// For a step that must see its token whole, behind one that makes a single token of all.
class WholeStage : public Stage {
 public:
  explicit WholeStage(std::unique_ptr<Stage> inner) : inner_(std::move(inner)) {}
  void push(Piece piece, Parts&) override { whole_ += piece.text; }
  void finish(Parts& out) override {
    inner_->push({std::move(whole_)}, out);
    inner_->finish(out);
  }

 private:
  std::unique_ptr<Stage> inner_;
  std::string whole_;
};

class SpacesBetweenStage : public Stage {
 public:
  void push(Piece piece, Parts& out) override {
    if (!first_) piece.text.insert(piece.text.begin(), ' ');
    first_ = false;
    out.push_back(std::move(piece));
  }

 private:
  bool first_ = true;
};

// What a step looks for in tokens, if anything.
const std::string* sought_text(const DecoderStep& step) {
  if (const auto* metaspace = std::get_if<DecodeMetaspace>(&step)) return &metaspace->replacement;
  if (const auto* strip = std::get_if<DecodeStrip>(&step)) return &strip->content;
  if (const auto* replace = std::get_if<DecodeReplace>(&step)) return &replace->pattern.text;
  if (const auto* suffix = std::get_if<DecodeSuffix>(&step)) return &suffix->suffix;
  return nullptr;
}

}  // namespace

struct TokenDecoder::Compiled {
  Regex regex;
};

TokenDecoder::TokenDecoder(std::vector<DecoderStep> steps, bool joined_by_spaces)
    : steps_(std::move(steps)), joined_by_spaces_(joined_by_spaces) {
  for (const DecoderStep& step : steps_) {
    auto& compiled = compiled_.emplace_back();
    const std::string* sought = sought_text(step);
    if (sought != nullptr && sought->empty()) throw Error("the tokenizer's decoder looks for an empty text");
    const auto* replace = std::get_if<DecodeReplace>(&step);
    if (replace == nullptr) continue;
    if (replace->pattern.is_regex)
      compiled = std::make_unique<Compiled>(Compiled{Regex(replace->pattern.text)});
  }
}

TokenDecoder::TokenDecoder(TokenDecoder&&) noexcept = default;
TokenDecoder::~TokenDecoder() = default;

TokenDecoder::Stream TokenDecoder::start() const {
  struct Make {
    const Compiled* compiled;
    bool& fused;  // an earlier step has made one token of all

    std::unique_ptr<Stage> whole(std::unique_ptr<Stage> stage) const {
      return fused ? std::make_unique<WholeStage>(std::move(stage)) : std::move(stage);
    }
    std::unique_ptr<Stage> operator()(const DecodeByteLevel&) const {
      auto stage = whole(std::make_unique<ByteLevelStage>());
      fused = true;
      return stage;
    }
    std::unique_ptr<Stage> operator()(const DecodeMetaspace& step) const {
      return std::make_unique<MetaspaceStage>(step, fused);
    }
    std::unique_ptr<Stage> operator()(const DecodeByteFallback&) const {
      return whole(std::make_unique<ByteFallbackStage>());
    }
    std::unique_ptr<Stage> operator()(const DecodeFuse&) const {
      fused = true;
      return nullptr;
    }
    std::unique_ptr<Stage> operator()(const DecodeStrip& step) const {
      if (fused && step.stop == 0) return std::make_unique<StripStartStage>(step);
      return whole(std::make_unique<StripStage>(step));
    }
    std::unique_ptr<Stage> operator()(const DecodeReplace& step) const {
      return whole(std::make_unique<ReplaceStage>(step, compiled ? &compiled->regex : nullptr));
    }
    std::unique_ptr<Stage> operator()(const DecodeWordPiece& step) const {
      return whole(std::make_unique<WordPieceStage>(step));
    }
    std::unique_ptr<Stage> operator()(const DecodeSuffix& step) const {
      return whole(std::make_unique<SuffixStage>(step));
    }
  };
  Stream stream;
  bool fused = false;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (auto stage = std::visit(Make{compiled_[i].get(), fused}, steps_[i])) {
      stream.stages_.push_back(std::move(stage));
    }
  }
  if (joined_by_spaces_) stream.stages_.push_back(std::make_unique<SpacesBetweenStage>());
  return stream;
}

std::string TokenDecoder::Stream::run(size_t stage, std::vector<Piece> pieces) {
  for (; stage < stages_.size(); ++stage) {
    std::vector<Piece> next;
    for (Piece& piece : pieces) stages_[stage]->push(std::move(piece), next);
    pieces = std::move(next);
  }
  std::string text;
  for (const Piece& piece : pieces) text += piece.text;
  return text;
}

std::string TokenDecoder::Stream::push(Piece piece) {
  std::vector<Piece> pieces;
  pieces.push_back(std::move(piece));
  return run(0, std::move(pieces));
}

std::string TokenDecoder::Stream::finish() {
  std::string text;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    std::vector<Piece> held;
    stages_[stage]->finish(held);
    text += run(stage + 1, std::move(held));
  }
  return text;
}

}  // namespace quire
