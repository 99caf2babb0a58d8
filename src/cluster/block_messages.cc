#include "cluster/block_messages.h"

#include <algorithm>

#include "base/json.h"

namespace quire {
namespace {

OrderedJson stored_json(const BlockEvent& block, uint32_t block_tokens) {
  return {{"type", "BlockStored"},
          {"block_hashes", OrderedJson::array({block.hash})},
          {"parent_block_hash", block.parent ? OrderedJson(*block.parent) : OrderedJson(nullptr)},
          {"token_ids", block.tokens},
          {"block_size", block_tokens},
          {"lora_id", nullptr},
          {"medium", medium_of(block.place)},
          {"lora_name", nullptr}};
}

OrderedJson removed_json(const BlockEvent& block) {
  return {{"type", "BlockRemoved"},
          {"block_hashes", OrderedJson::array({block.hash})},
          {"medium", medium_of(block.place)}};
}

bool goes_on(const BlockEvent& before, const BlockEvent& event) {
  if (event.kind != before.kind || event.place != before.place) return false;
  if (event.kind == BlockEvent::Kind::stored) return event.parent == before.hash;
  return event.kind == BlockEvent::Kind::removed;
}

void add_to(OrderedJson& message, const BlockEvent& event) {
  message["block_hashes"].push_back(event.hash);
  if (event.kind != BlockEvent::Kind::stored) return;
  OrderedJson& tokens = message["token_ids"];
  for (const TokenId token : event.tokens) tokens.push_back(token);
}

OrderedJson event_json(const BlockEvent& event, uint32_t block_tokens) {
  switch (event.kind) {
    case BlockEvent::Kind::stored:
      return stored_json(event, block_tokens);
    case BlockEvent::Kind::removed:
      return removed_json(event);
    case BlockEvent::Kind::cleared:
      break;
  }
  return {{"type", "AllBlocksCleared"}};
}

}  // namespace

std::string_view medium_of(BlockPlace place) {
  switch (place) {
    case BlockPlace::memory:
      return "GPU";
    case BlockPlace::host:
      return "CPU";
    case BlockPlace::disk:
      return "STORAGE";
    case BlockPlace::remote:
      break;
  }
  return "SHARED_STORAGE";
}

std::string batch_message(std::span<const BlockEvent> events, uint32_t block_tokens, double seconds) {
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < events.size(); ++i) {
    if (i > 0 && goes_on(events[i - 1], events[i])) {
      add_to(list.back(), events[i]);
    } else {
      list.push_back(event_json(events[i], block_tokens));
    }
  }
  std::string bytes;
  OrderedJson::to_msgpack(OrderedJson::array({seconds, std::move(list), 0}), bytes);
  return bytes;
}

std::string number_bytes(uint64_t number) {
  std::string bytes(sizeof(number), '\0');
  for (size_t i = bytes.size(); i-- > 0; number >>= 8) bytes[i] = char(number & 0xff);
  return bytes;
}

std::optional<uint64_t> number_from(std::string_view bytes) {
  if (bytes.size() != sizeof(uint64_t)) return std::nullopt;
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | uint8_t(byte);
  return number;
}

}  // namespace quire
