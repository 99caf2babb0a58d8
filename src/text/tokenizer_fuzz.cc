#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/bounded_work.h"
#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

// Any bytes as a tokenizer.json: an Error, or a tokenizer that works.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::BoundedWork work(size);
  using namespace quire;
  try {
    const Tokenizer tokenizer(
        tokenizer_spec_from_json({reinterpret_cast<const char*>(data), size}, R"({"bos_token": "<s>"})"));
    std::vector<TokenId> ids(std::min<size_t>(tokenizer.size() + 2, 64));
    std::iota(ids.begin(), ids.end(), 0u);
    for (const std::string_view text :
         {"", "Hello  world, it's 12345 <s>!\n\n",
          "\xC3\xA9 e\xCC\x81 \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80", "broken \xFF\xC3 bytes",
          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}) {
      const ByteRange plain{1, 3};
      const auto encoded = tokenizer.encode(text, {.parse_special = true, .plain = {&plain, 1}});
      for (const TokenId id : encoded) {
        if (id >= tokenizer.size()) __builtin_trap();
      }
      ids.insert(ids.end(), encoded.begin(), encoded.end());
    }
    Detokenizer stream(tokenizer, Tokenizer::Special::keep);
    std::string joined;
    for (const TokenId id : ids) joined += stream.push(id);
    joined += stream.finish();
    if (!is_valid_utf8(joined) || joined != tokenizer.decode(ids, Tokenizer::Special::keep)) __builtin_trap();
  } catch (const Error&) {
  }
  return 0;
}
