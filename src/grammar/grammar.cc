#include "grammar/grammar.h"

#include <utility>

#include "base/check.h"

namespace quire::grammar {

class Grammar::Question {
 public:
  explicit Question(Grammar& grammar) : lock_(grammar.mutex_), grammar_(grammar) {
    if (grammar.budget_) grammar.asked_.store(grammar.budget_->tick(), std::memory_order_relaxed);
  }
  ~Question() {
    if (!grammar_.budget_) return;
    const size_t now = grammar_.used_bytes();
    if (now == grammar_.told_) return;
    if (grammar_.budget_->told(grammar_, now)) {
      grammar_.forget();
      grammar_.budget_->told(grammar_, grammar_.used_bytes());
    }
    grammar_.told_ = grammar_.used_bytes();
  }

 private:
  const std::lock_guard<std::mutex> lock_;
  Grammar& grammar_;
};

Grammar::Grammar(Rules rules, std::shared_ptr<const TokenTrie> tokens, GrammarSource source,
                 std::shared_ptr<GrammarBudget> budget)
    : source_(std::move(source)),
      tokens_(std::move(tokens)),
      columns_(std::move(rules)),
      budget_(std::move(budget)) {
  if (!budget_) return;
  budget_->join(*this);
  const Question counted(*this);
}

Grammar::~Grammar() {
  if (budget_) budget_->leave(*this);
}

size_t Grammar::used_bytes() const {
  return sizeof(*this) + source_.text.size() + columns_.all_bytes() +
         masks_.size() * (tokens_->mask_words() * sizeof(uint32_t) + 64);
}

void Grammar::forget() {
  if (columns_.used_bytes() == 0 && masks_.empty()) return;
  columns_.forget();
  masks_.clear();
  ++epoch_;
  budget_->count_forgotten();
}

std::optional<size_t> Grammar::try_forget() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  forget();
  return told_ = used_bytes();
}

void Grammar::tidy() {
  columns_.begin_question();
  if (columns_.used_bytes() < kKeptBytes) return;
  columns_.forget();
  masks_.clear();
  ++epoch_;
}

Columns::Id Grammar::walk(Columns::Id column, std::string_view bytes) {
  for (const char byte : bytes) {
    if (column == Columns::kDead) break;
    column = columns_.next(column, uint8_t(byte));
  }
  return column;
}

void Grammar::refresh(std::span<const TokenId> tokens, Place& place) {
  tidy();
  if (place.epoch == epoch_) return;
  Columns::Id column = columns_.start();
  for (const TokenId token : tokens) {
    const std::string_view bytes = token < tokens_->size() ? tokens_->bytes(token) : std::string_view();
    column = bytes.empty() ? Columns::kDead : walk(column, bytes);
  }
  place = {column, epoch_};
}

Grammar::Place Grammar::after(std::span<const TokenId> tokens, Place known, size_t more) {
  const Question question(*this);
  refresh(tokens.first(tokens.size() - more), known);
  for (const TokenId token : tokens.last(more)) {
    const std::string_view bytes = token < tokens_->size() ? tokens_->bytes(token) : std::string_view();
    known.column = bytes.empty() ? Columns::kDead : walk(known.column, bytes);
  }
  return known;
}

std::shared_ptr<const TokenMask> Grammar::mask(std::span<const TokenId> tokens, Place& place) {
  const Question question(*this);
  refresh(tokens, place);
  if (const auto found = masks_.find(place.column); found != masks_.end()) return found->second;
  auto made = std::make_shared<TokenMask>(tokens_->mask_words());
  if (place.column != Columns::kDead) tokens_->add_allowed(columns_, place.column, *made);
  if (masks_.size() >= kMostMasks) masks_.clear();
  masks_.emplace(place.column, made);
  return made;
}

bool Grammar::may_end(std::span<const TokenId> tokens, Place& place) {
  const Question question(*this);
  refresh(tokens, place);
  return columns_.may_end(place.column);
}

bool Grammar::can_continue(std::span<const TokenId> tokens, Place& place) {
  const Question question(*this);
  refresh(tokens, place);
  return columns_.can_continue(place.column);
}

std::string Grammar::forced(std::span<const TokenId> tokens, Place& place, size_t most) {
  const Question question(*this);
  refresh(tokens, place);
  std::string bytes;
  for (Columns::Id column = place.column; bytes.size() < most && !columns_.may_end(column);) {
    int only = -1;
    for (int byte = 0; byte < 256; ++byte) {
      if (columns_.next(column, uint8_t(byte)) == Columns::kDead) continue;
      if (only >= 0) return bytes;
      only = byte;
    }
    if (only < 0) return bytes;
    bytes += char(only);
    column = columns_.next(column, uint8_t(only));
  }
  return bytes;
}

bool Grammar::accepts(std::string_view text) {
  const Question question(*this);
  tidy();
  return columns_.may_end(walk(columns_.start(), text));
}

Constraint::Constraint(std::shared_ptr<Grammar> grammar) : grammar_(std::move(grammar)), places_(1) {}

bool Constraint::advance(TokenId token) {
  tokens_.push_back(token);
  Grammar::Place place;
  try {
    place = grammar_->after(tokens_, places_.back(), 1);
  } catch (...) {
    tokens_.pop_back();
    throw;
  }
  if (place.column == Columns::kDead) {
    tokens_.pop_back();
    return false;
  }
  places_.push_back(place);
  return true;
}

void Constraint::rollback(size_t tokens) {
  CHECK(tokens <= tokens_.size());
  tokens_.resize(tokens_.size() - tokens);
  places_.resize(places_.size() - tokens);
}

std::shared_ptr<const TokenMask> Constraint::mask() {
  return grammar_->mask(tokens_, places_.back());
}

bool Constraint::may_end() {
  return grammar_->may_end(tokens_, places_.back());
}

bool Constraint::must_end() {
  return !grammar_->can_continue(tokens_, places_.back());
}

std::vector<TokenId> Constraint::forced(size_t most) {
  constexpr size_t kBytesPerToken = 16;
  const std::string bytes = grammar_->forced(tokens_, places_.back(), most * kBytesPerToken);
  std::vector<TokenId> forced;
  for (std::string_view rest = bytes; !rest.empty() && forced.size() < most;) {
    const std::optional<TokenId> token = grammar_->tokens().longest_at(rest);
    if (!token) break;
    forced.push_back(*token);
    rest.remove_prefix(grammar_->tokens().bytes(*token).size());
  }
  // What follows the last may belong to the same token as its end does.
  if (forced.size() > 1 && forced.size() < most) forced.pop_back();
  return forced;
}

}  // namespace quire::grammar
