// Any bytes are requests of HTTP, or a problem; and the same ones in whatever pieces they come.
#include <cstddef>
#include <cstdint>
#include <set>

#include "base/bounded_work.h"
#include "base/check.h"
#include "server/http_framing.h"

namespace {

using namespace quire;

constexpr size_t kMostHead = 4096, kMostBody = 4096;

// All that is known of a stream of bytes, as one text.
struct Story {
  std::string text;
  size_t taken = 0;

  void tell(std::string_view part) { text.append(part).push_back('\0'); }
};

void check_request(const RequestReader& reader, const HttpRequest& request, std::string_view body) {
  CHECK(request.path.size() <= kMostHead && body.size() <= kMostBody);
  CHECK(reader.judgement().chunked || reader.judgement().length == body.size());
  std::set<std::string> unique;
  for (const auto& [name, value] : reader.head().fields) {
    for (const char* only : {"host", "authorization", "content-length", "transfer-encoding"})
      CHECK(name != only || unique.insert(name).second);
    CHECK(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
  }
  CHECK(unique.contains("host") || !reader.head().http_1_1);
  CHECK(!unique.contains("content-length") || !unique.contains("transfer-encoding"));
}

// As a connection reads, `piece(i)` bytes at a time.
template <class Piece>
Story read(std::string_view bytes, Piece piece) {
  Story story;
  size_t pieces = 0;
  while (true) {
    RequestReader reader(kMostHead);
    while (true) {
      if (reader.state() == RequestReader::State::admitted) reader.take_body(kMostBody);
      if (!reader.wants_more() || story.taken == bytes.size()) break;
      const size_t part = std::min(piece(pieces++), bytes.size() - story.taken);
      story.taken += reader.take(bytes.substr(story.taken, part));
    }
    if (reader.state() == RequestReader::State::wrong) story.tell(reader.problem().why);
    if (reader.state() != RequestReader::State::done) return story;
    const HttpRequest request = request_of(reader.head());
    check_request(reader, request, reader.body());
    story.tell(request.method);
    story.tell(request.path);
    story.tell(reader.judgement().keep_alive ? "stays" : "goes");
    for (const auto& [name, value] : request.headers) story.tell(name + ": " + value);
    for (const auto& [name, value] : request.query) story.tell(name + "=" + value);
    story.tell(reader.body());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const BoundedWork work(size);
  const Story whole = read(bytes, [](size_t) { return SIZE_MAX; });
  const Story by_bytes = read(bytes, [](size_t) { return size_t(1); });
  const Story mixed = read(bytes, [&](size_t i) { return size_t(data[(i * 7) % size] % 13 + 1); });
  CHECK(whole.text == by_bytes.text && whole.taken == by_bytes.taken);
  CHECK(whole.text == mixed.text && whole.taken == mixed.taken);
  return 0;
}
