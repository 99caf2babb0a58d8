#include "runner/step_message.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/error.h"

namespace quire {
namespace {

// A move of bytes as others are told of it.
struct ToldMove {
  uint64_t group, bytes, from, to;
};

class Writer {
 public:
  explicit Writer(MessageKind kind) { number(uint64_t(kind)); }

  void number(uint64_t value) { append(&value, sizeof(value)); }
  template <class T>
  void list(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    number(values.size());
    append(values.data(), values.size_bytes());
  }
  template <class T>
  void list(const std::vector<T>& values) {
    list(std::span<const T>(values));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(const void* from, size_t bytes) {
    const size_t begin = bytes_.size();
    bytes_.resize(begin + bytes);
    if (bytes > 0) std::memcpy(bytes_.data() + begin, from, bytes);
  }
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> rest, MessageKind kind) : rest_(rest) {
    if (number() != uint64_t(kind)) throw Error("rank 0 has sent a message of another kind");
  }

  uint64_t number() {
    uint64_t value = 0;
    take(&value, sizeof(value));
    return value;
  }
  template <class T>
  void list(std::vector<T>& values) {
    const uint64_t count = number();
    if (count > rest_.size() / sizeof(T)) throw Error("a message of rank 0 is cut");
    values.resize(count);
    take(values.data(), count * sizeof(T));
  }
  void end() const {
    if (!rest_.empty()) throw Error("a message of rank 0 is too long");
  }

 private:
  void take(void* to, size_t bytes) {
    if (bytes > rest_.size()) throw Error("a message of rank 0 is cut");
    if (bytes > 0) std::memcpy(to, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
  }
  std::span<const std::byte> rest_;
};

}  // namespace

std::vector<std::byte> pages_message(std::span<const uint32_t> pages_per_group) {
  Writer writer(MessageKind::pages);
  writer.list(pages_per_group);
  return writer.take();
}

std::vector<std::byte> moves_message(const KvMoves& moves) {
  CHECK(moves.after == 0 && moves.back.empty());
  std::vector<ToldMove> told;
  for (const KvMove& move : moves.list) {
    CHECK(move.host_from == nullptr && move.host_to == nullptr && move.host_slot == KvMove::kNoSlot);
    CHECK(move.stored_as == 0 && move.sent_as == 0 && move.ticket == 0 && move.rotated_rows == 0);
    told.push_back({move.group, move.bytes, move.from, move.to});
  }
  Writer writer(MessageKind::moves);
  writer.list(told);
  return writer.take();
}

std::vector<std::byte> step_message(const StepInput& step) {
  CHECK(step.hidden.empty() && step.expectations.empty() && step.taps.empty() && step.columns.empty());
  Writer writer(MessageKind::step);
  writer.list(step.tokens);
  writer.list(step.positions);
  writer.list(step.run_of_token);
  writer.list(step.runs);
  writer.list(step.logit_rows);
  writer.number(step.layers);
  writer.number(step.tables.groups.size());
  for (const KvTables::Group& group : step.tables.groups) {
    CHECK(group.unequal.empty() && group.state_rows.empty());
    writer.list(group.page_ids);
    writer.list(group.table_begin);
    writer.list(group.row_shift);
  }
  return writer.take();
}

MessageKind kind_of(std::span<const std::byte> message) {
  uint64_t kind = 0;
  if (message.size() < sizeof(kind)) throw Error("a message of rank 0 is cut");
  std::memcpy(&kind, message.data(), sizeof(kind));
  if (kind > uint64_t(MessageKind::step)) throw Error("rank 0 has sent a message of no kind that is known");
  return MessageKind(kind);
}

std::vector<uint32_t> read_pages(std::span<const std::byte> message) {
  Reader reader(message, MessageKind::pages);
  std::vector<uint32_t> pages;
  reader.list(pages);
  reader.end();
  return pages;
}

KvMoves read_moves(std::span<const std::byte> message) {
  Reader reader(message, MessageKind::moves);
  std::vector<ToldMove> told;
  reader.list(told);
  reader.end();
  KvMoves moves;
  for (const ToldMove& one : told) {
    KvMove& move = moves.list.emplace_back();
    move.group = uint32_t(one.group);
    move.bytes = one.bytes;
    move.from = one.from;
    move.to = one.to;
  }
  return moves;
}

StepInput read_step(std::span<const std::byte> message) {
  Reader reader(message, MessageKind::step);
  StepInput step;
  reader.list(step.tokens);
  reader.list(step.positions);
  reader.list(step.run_of_token);
  reader.list(step.runs);
  reader.list(step.logit_rows);
  step.layers = reader.number();
  const uint64_t groups = reader.number();
  for (uint64_t g = 0; g < groups; ++g) {
    KvTables::Group& group = step.tables.groups.emplace_back();
    reader.list(group.page_ids);
    reader.list(group.table_begin);
    reader.list(group.row_shift);
  }
  reader.end();
  return step;
}

}  // namespace quire
