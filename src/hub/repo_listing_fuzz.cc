// Whatever a hub sends as a list of files, a commit, an index of shards or a Link is understood or is an Error; names that
// are left are safe.
#include <cstddef>
#include <cstdint>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "hub/file_choice.h"
#include "hub/hub_name.h"
#include "hub/repo_listing.h"
#include "hub/url.h"

namespace {

template <class Read>
void try_to(Read read) {
  try {
    read();
  } catch (const quire::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const quire::BoundedWork work(size, {.bytes_per_byte = 1024});
  try_to([&] {
    quire::RepoListing listing;
    quire::add_tree_page(text, listing);
    for (const quire::RepoFile& file : listing.files) {
      CHECK(quire::is_safe_path(file.path));
      CHECK(file.digest.size() == 40 || file.digest.size() == 64);
    }
    for (const quire::StoredModel& model : quire::models_in(listing.files)) CHECK(!model.files.empty());
  });
  try_to([&] { CHECK(quire::is_commit_hash(quire::commit_in(text))); });
  try_to([&] {
    for (const std::string& name : quire::shards_in(text)) CHECK(quire::is_safe_path(name));
  });
  quire::next_page_in(text);
  if (const auto url = quire::parse_url(text)) {
    const auto again = quire::parse_url(url->text());
    CHECK(again ? again->same_origin(*url) : size > 16'000);  // at the longest it gets one slash too many
  }
  const quire::Url from{.scheme = "https", .host = "huggingface.co", .port = 443, .rest = "/a/b"};
  if (const auto to = quire::redirected(from, text)) CHECK(to->scheme == "https");
  try_to([&] { CHECK(quire::is_safe_path(quire::HubName::parse(text).folder())); });
  return 0;
}
