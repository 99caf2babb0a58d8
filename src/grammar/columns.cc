#include "grammar/columns.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace quire::grammar {
namespace {

constexpr size_t kMostItems = 20'000;

// Rules that have ended at one place, and since when. Mostly a few.
class EndedRules {
 public:
  // False: it is there already.
  bool insert(std::pair<uint32_t, uint32_t> rule) {
    if (std::ranges::find(few_, rule) != few_.end()) return false;
    if (few_.size() == kFew) return many_.insert(rule).second;
    few_.push_back(rule);
    return true;
  }

 private:
  static constexpr size_t kFew = 24;
  std::vector<std::pair<uint32_t, uint32_t>> few_;
  std::set<std::pair<uint32_t, uint32_t>> many_;
};

}  // namespace

size_t Columns::KernelHash::operator()(const std::vector<Item>& items) const {
  uint64_t hash = items.size();
  for (const Item& item : items) {
    for (const uint64_t half :
         {uint64_t(item.place) << 32 | item.goal, uint64_t(item.origin) << 32 | item.text}) {
      hash = (hash ^ half) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 31;
    }
  }
  return hash;
}

Columns::Columns(Rules rules) : rules_(std::move(rules)) {
  forget();
}

void Columns::forget() {
  columns_.clear();
  rows_.clear();
  endless_.assign(1, 0);
  by_kernel_.clear();
  columns_.emplace_back();  // kDead
  rows_.emplace_back();
  start_ = kDead;
  used_bytes_ = 0;
}

void Columns::charge(size_t bytes) {
  used_bytes_ += bytes;
  if (used_bytes_ > kMostBytes)
    throw Error("the grammar is too complex: what it allows here takes more than {} MiB to find out",
                kMostBytes >> 20);
}

void Columns::count_work() {
  if (++work_ > kMostWork)
    throw Error("the grammar is too ambiguous: it takes too long to find out what it allows here");
}

Columns::Id Columns::start() {
  if (start_ == kDead) {
    const uint32_t root = rules_.start();
    start_ = intern({{.place = root, .goal = kAccept, .origin = kDead}});
  }
  return start_;
}

void Columns::advance(Item item, std::vector<Item>& out) {
  std::vector<Item> todo{item};
  EndedRules ended;
  while (!todo.empty()) {
    const Item one = todo.back();
    todo.pop_back();
    count_work();
    if (rules_.at(one.place) != Rules::kEnd) {
      out.push_back(one);
      continue;
    }
    if (one.goal == kAccept) {
      out.push_back({.place = kAccept});
      continue;
    }
    // What is empty was gone past when it was met.
    if (one.origin == kSelf || !ended.insert({one.goal, one.origin})) continue;
    const std::vector<Item>& waiting = columns_[one.origin].waiting;
    const auto is_before = [&](const Item& w, uint32_t goal) { return rules_.at(w.place).index() < goal; };
    for (auto w = std::lower_bound(waiting.begin(), waiting.end(), one.goal, is_before);
         w != waiting.end() && rules_.at(w->place).index() == one.goal; ++w) {
      todo.push_back({w->place + 1, w->goal, w->origin, ExprPool::kNothing});
    }
  }
}

Columns::Id Columns::compute(Id column, uint8_t byte) {
  if (column == kDead) return kDead;
  std::vector<Item> kernel;
  ByteSet alike;
  alike.words.fill(~uint64_t(0));
  ExprPool& pool = rules_.pool();
  for (const Item& item : columns_[column].lexing) {
    alike = alike & pool.alike(item.text, byte);
    const ExprId text = pool.next(item.text, byte);
    if (text == ExprPool::kNothing) continue;
    if (pool.can_continue(text)) kernel.push_back({item.place, item.goal, item.origin, text});
    if (pool.nullable(text)) advance({item.place + 1, item.goal, item.origin, ExprPool::kNothing}, kernel);
  }
  const Id to = kernel.empty() ? kDead : intern(std::move(kernel));
  if (!rows_[column]) {
    charge(256 * sizeof(Id));
    rows_[column] = std::make_unique<Id[]>(256);
    std::fill_n(rows_[column].get(), 256, kUnknown);
  }
  alike.each([row = rows_[column].get(), to](uint8_t other) { row[other] = to; });
  return to;
}

Columns::Id Columns::intern(std::vector<Item> kernel) {
  std::ranges::sort(kernel);
  kernel.erase(std::unique(kernel.begin(), kernel.end()), kernel.end());
  if (const auto found = by_kernel_.find(kernel); found != by_kernel_.end()) return found->second;
  const Id self = Id(columns_.size());
  columns_.emplace_back();
  rows_.emplace_back();
  endless_.push_back(0);
  close(kernel, self);
  const Column& made = columns_[self];
  charge(sizeof(Column) + 64 + (kernel.size() + made.lexing.size() + made.waiting.size()) * sizeof(Item));
  by_kernel_.emplace(std::move(kernel), self);
  return self;
}

void Columns::close(std::span<const Item> kernel, Id self) {
  Column made;
  std::set<Item> seen;  // what stands before a symbol
  std::vector<Item> work;
  const auto take = [&](const Item& item) {
    if (item.place == kAccept) {
      made.accepts = true;
    } else if (item.text != ExprPool::kNothing) {
      made.lexing.push_back(item);
    } else if (seen.insert(item).second) {
      work.push_back(item);
    }
  };
  for (const Item& item : kernel) take(item);
  std::vector<Item> found;
  while (!work.empty()) {
    const Item item = work.back();
    work.pop_back();
    count_work();
    if (seen.size() > kMostItems)
      throw Error("the grammar is too complex: too many of its rules are under way at once");
    found.clear();
    const Symbol symbol = rules_.at(item.place);
    if (symbol == Rules::kEnd) {
      advance(item, found);
    } else {
      if (symbol.is_terminal()) {
        if (rules_.pool().can_continue(symbol.text()))
          made.lexing.push_back({item.place, item.goal, item.origin, symbol.text()});
      } else {
        const bool is_last = rules_.at(item.place + 1) == Rules::kEnd;
        if (!is_last) made.waiting.push_back(item);
        for (uint32_t place : rules_.alternatives(symbol.index())) {
          found.push_back(is_last ? Item{place, item.goal, item.origin, ExprPool::kNothing}
                                  : Item{place, symbol.index(), kSelf, ExprPool::kNothing});
        }
      }
      if (rules_.is_nullable(symbol))
        found.push_back({item.place + 1, item.goal, item.origin, ExprPool::kNothing});
    }
    for (const Item& one : found) take(one);
  }
  const auto resolve = [&](std::vector<Item>& items) {
    for (Item& item : items) {
      if (item.origin == kSelf) item.origin = self;
    }
  };
  resolve(made.lexing);
  resolve(made.waiting);
  std::ranges::sort(made.lexing);
  made.lexing.erase(std::unique(made.lexing.begin(), made.lexing.end()), made.lexing.end());
  std::ranges::sort(made.waiting, {},
                    [&](const Item& w) { return std::pair(rules_.at(w.place).index(), w); });
  for (const Item& item : made.lexing) {
    const auto run = rules_.pool().plain_run(item.text);
    if (run == kEndless || made.lexing.size() == 1) made.plain_run = run;
    if (run == kEndless) break;
  }
  endless_[self] = made.plain_run == kEndless ? 1 : 0;
  columns_[self] = std::move(made);
}

}  // namespace quire::grammar
