#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quire {

struct HttpReply {
  int status = 0;
  std::string version;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  Json json() const { return parse_json(body, "the reply's body"); }
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
  // Of an error in OpenAI's shape.
  std::string error(const char* field) const;
};

// One connection that says exactly what it is told to. Blocks; nothing of it is shared with the server's own HTTP.
class HttpClient {
 public:
  explicit HttpClient(uint16_t port);
  ~HttpClient() { close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(std::string_view bytes);
  // A request of HTTP/1.1. `headers` is lines, each with its "\r\n".
  void request(std::string_view method, std::string_view target, std::string_view body = "",
               std::string_view headers = "");

  // A whole reply; `body_comes` is false after HEAD.
  enum class Body { comes, stays };
  HttpReply read_reply(Body body = Body::comes);
  // Only up to the empty line.
  HttpReply read_head();
  // The data of the next event of a stream; nothing at its end. After read_head(). Comments, which keep a stream alive on a slow
  // machine too, are passed over.
  std::optional<std::string> read_event();
  // The same; a comment comes with its colon.
  std::optional<std::string> read_event_or_comment();

  bool at_end();  // the server has closed the connection
  void close();

 private:
  bool receive();  // more bytes into received_; false at the end
  std::string read_line();
  std::string read_bytes(size_t count);
  bool read_chunk();  // into stream_; false after the last

  int socket_ = -1;
  std::string received_;
  std::string stream_;  // of a body that is read event by event
  bool chunked_ = false;
  std::optional<size_t> left_;  // of a body whose length was told
};

}  // namespace quire
