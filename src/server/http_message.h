#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace quire {

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;  // names in lower case; never what came behind the body
  std::string body;
  std::string peer;  // the client's address

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
};

struct HttpLimits {
  size_t body_bytes = size_t(16) << 20;
  uint32_t header_bytes = 16 << 10;
  uint32_t connections = 4096;
  // Of all connections together: bodies that are coming or are still needed, and replies that are not yet written.
  size_t request_bytes_in_flight = size_t(256) << 20;
  size_t reply_bytes_in_flight = size_t(256) << 20;
  std::chrono::milliseconds header_time{10'000}, body_time{60'000}, idle_time{120'000};
  std::chrono::milliseconds write_time{60'000};  // without progress: a reader that has stopped
  // A whole reply has the write time, and a second more for each so many of its bytes.
  size_t least_bytes_per_second = 32 << 10;
};

}  // namespace quire
