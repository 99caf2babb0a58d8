// Any bytes as the ticket that hands a prompt over: none, or one that is read again as it is written, and that only a prompt is believed
// to be meant by whose tag it has. The first bytes choose a true ticket, which the next may change.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bounded_work.h"
#include "base/check.h"
#include "kv/tiers/hand_over.h"
#include "kv/tiers/remote_tier_case.h"

namespace {

using namespace quire;

constexpr uint32_t kNodeTokens = 4, kTokens = 30;
constexpr CacheSalt kSalt{.key = 3, .text = 4};

struct Prompt {
  TestMac mac;
  std::vector<TokenId> tokens;
  PrefixTags tags{mac, "fuzz", kNodeTokens};

  Prompt() {
    for (TokenId token = 0; token < kTokens; ++token) tokens.push_back(token * 7);
  }
  HandOver true_of(uint32_t nodes) {
    return {.tokens = nodes * kNodeTokens, .prefix = tags.of(tokens, kSalt, nodes)};
  }
};

void check(Prompt& prompt, std::string_view ticket) {
  const auto over = HandOver::parse(ticket);
  if (!over) return;
  const auto again = HandOver::parse(over->text());
  CHECK(again && again->tokens == over->tokens && again->prefix == over->prefix);
  CHECK(over->text().size() <= ticket.size());
  const uint32_t nodes = nodes_told_of(*over, prompt.tokens, kSalt, kNodeTokens, prompt.tags);
  if (nodes == 0) return;
  CHECK(nodes <= kTokens / kNodeTokens && over->tokens == nodes * kNodeTokens);
  CHECK(over->prefix == prompt.true_of(nodes).prefix);
  CHECK(nodes_told_of(*over, prompt.tokens, {}, kNodeTokens, prompt.tags) == 0);
  CHECK(nodes_told_of(*over, std::span(prompt.tokens).first(over->tokens - 1), kSalt, kNodeTokens,
                      prompt.tags) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const BoundedWork work(size);
  static Prompt prompt;
  check(prompt, {reinterpret_cast<const char*>(data), size});
  if (size < 1) return 0;
  std::string ticket = prompt.true_of(1 + data[0] % (kTokens / kNodeTokens)).text();
  check(prompt, ticket);
  for (++data, --size; size >= 2; data += 2, size -= 2) {
    const size_t at = data[0] % (ticket.size() + 1);
    if (at == ticket.size()) {
      ticket += char(data[1]);
    } else if (data[1] == 0) {
      ticket.erase(at, 1);
    } else {
      ticket[at] = char(data[1]);
    }
    check(prompt, ticket);
  }
  return 0;
}
