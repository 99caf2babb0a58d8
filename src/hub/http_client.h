#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "hub/url.h"

namespace quire {

// What came back of one request. Header names are in lower case; only those that somebody here reads are kept.
struct HttpReply {
  long status = 0;  // 0: no reply at all
  std::map<std::string, std::string> headers;
  // Empty if the whole reply came. Else why not, in words, and whether another try may help.
  std::string trouble;
  bool may_pass = true;

  std::string header(const std::string& name) const;
};

struct HttpRequest {
  Url url;
  std::string token;        // empty: asks as nobody
  uint64_t first_byte = 0;  // asks for what comes from there on
  long whole_seconds = 0;   // that all of it may take; 0: as long as something comes
};

// Takes the body of a reply, once its status and headers are known. What it throws ends the transfer and is thrown on.
class HttpBody {
 public:
  virtual ~HttpBody() = default;
  virtual void take(const HttpReply& head, std::span<const std::byte> bytes) = 0;
};

// libcurl: proxies and certificates are as its environment says. One request at a time, each one step: redirects are the
// caller's. One thread.
class HttpClient {
 public:
  // Throws Error if this program was built without libcurl.
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  HttpReply get(const HttpRequest& request, HttpBody& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
