// Any bytes are either the page that was asked for, bit by bit, or none. The input is a list of changes to a good value, as random
// bytes would all end at the first that is compared; what is left of it is a value of its own.
#include <cstring>

#include "base/bounded_work.h"
#include "base/check.h"
#include "kv/tiers/remote_tier_case.h"

namespace {

using namespace quire;

void read(std::span<const std::byte> value, const PageAddress& wanted, std::span<const std::byte> good) {
  std::span<const std::byte> page;
  const PageFault fault = read_stored_page(value, wanted, TestMac(), page);
  CHECK(page.empty() == (fault != PageFault::none));
  CHECK(fault != PageFault::none ||
        (value.size() == good.size() && std::memcmp(value.data(), good.data(), good.size()) == 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const BoundedWork work(size);
  const TestMac mac;
  const TokenId tokens[] = {1, 2, 3, 4};
  PrefixTags tags(mac, "fuzz", 2);
  const std::byte bytes[24] = {};
  const PageAddress wanted{.space = tags.space(),
                           .prefix = tags.of(tokens, {}, 2),
                           .node_page = 1,
                           .tokens = std::span(tokens).subspan(2),
                           .bytes = sizeof(bytes)};
  std::vector<std::byte> good = stored_head(wanted);
  const StoreTag tag = stored_tag(good, bytes, mac);
  good.insert(good.end(), std::begin(bytes), std::end(bytes));
  good.insert(good.end(), tag.begin(), tag.end());
  read(good, wanted, good);
  std::vector<std::byte> changed = good;
  for (; size >= 3 && data[0] < 128; data += 3, size -= 3) {
    const size_t at = (size_t(data[0]) << 8 | data[1]) % (changed.size() + 1);
    if (data[2] == 0) {
      changed.resize(at);
    } else if (at == changed.size()) {
      changed.push_back(std::byte(data[2]));
    } else {
      changed[at] ^= std::byte(data[2]);
    }
    read(changed, wanted, good);
  }
  read({reinterpret_cast<const std::byte*>(data), size}, wanted, good);
  return 0;
}
