#pragma once

#include <functional>
#include <string>

#include "hub/http_client.h"
#include "hub/hub_name.h"
#include "hub/hub_places.h"
#include "hub/partial_blob.h"
#include "hub/repo_listing.h"

namespace quire {

// The hub's protocol: which commit a revision is, what a repository holds, and a file's bytes from wherever the hub sends one
// for them. Troubles that may pass are tried again, each time after a longer pause or as long as the hub says. The token
// is shown to the hub alone. What cannot be is an Error with the reason and what to do. One thread.
class HubClient {
 public:
  // `on_retry` is told, in words, why something is tried again.
  HubClient(const HubPlaces& places, std::function<void(const std::string&)> on_retry);

  std::string commit(const HubName& name);
  RepoListing listing(const HubName& name, const std::string& commit);
  // Fetches what is missing of a file.
  void fetch(const HubName& name, const std::string& commit, PartialBlob& blob, const RepoFile& file,
             const std::function<void()>& on_progress);

 private:
  struct Found {  // a reply, and who gave it in the end
    HttpReply reply;
    Url url;
  };
  Found follow(HttpRequest request, HttpBody& body);
  std::string get_text(const HubName& name, const Url& url, std::string* link);
  Url address(const std::string& path) const;
  // Returns after the pause; throws Error if there were too many already.
  void pause(const HttpReply& reply, int tries, const std::string& what) const;
  [[noreturn]] void refuse(const HubName& name, const HttpReply& reply, const Url& url,
                           const std::string& what) const;

  const HubPlaces& places_;
  std::function<void(const std::string&)> on_retry_;
  HttpClient http_;
};

// The first byte that a Content-Range ("bytes 100-199/200") says it begins with, if it is for a file of that many bytes.
std::optional<uint64_t> first_byte_of(const std::string& content_range, uint64_t file_bytes);

// Seconds to wait before the next try: what Retry-After says, else longer each time. Nothing if that would be too long.
std::optional<double> seconds_before(int tries, const std::string& retry_after);

}  // namespace quire
