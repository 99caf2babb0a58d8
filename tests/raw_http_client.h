#pragma once

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/json.h"

namespace quire {

struct RawResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
  Json json() const { return parse_json(body, "a response"); }
};

// A connection of bare bytes, for clients that do not behave. Waits as long as the server does.
class RawClient {
 public:
  // `receive_bytes`: how much the system takes for a client that does not read; 0: as usual.
  explicit RawClient(uint16_t port, int receive_bytes = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    CHECK(socket_ >= 0);
    if (receive_bytes > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    const int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  RawClient(RawClient&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)),
        connected_(other.connected_),
        received_(std::move(other.received_)) {}
  RawClient& operator=(RawClient&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(connected_, other.connected_);
    std::swap(received_, other.received_);
    return *this;
  }

  bool connected() const { return connected_; }
  int socket() const { return socket_; }

  // False: the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      bytes.remove_prefix(size_t(count));
    }
    return true;
  }
  bool ask(std::string_view method, std::string_view path, std::string_view body = "",
           std::string_view headers = "") {
    return send(request(method, path, body, headers));
  }
  // `headers`: whole lines.
  static std::string request(std::string_view method, std::string_view path, std::string_view body = "",
                             std::string_view headers = "") {
    return fmt::format("{} {} HTTP/1.1\r\nHost: test\r\n{}Content-Length: {}\r\n\r\n{}", method, path,
                       headers, body.size(), body);
  }

  // The next response, or only its head. Nothing: the server closed before it was complete.
  std::optional<RawResponse> read() {
    auto response = read_head();
    if (!response) return std::nullopt;
    if (response->header("transfer-encoding") == "chunked") {
      while (const auto part = read_part()) {
        if (part->empty()) return response;
        response->body += *part;
      }
      return std::nullopt;
    }
    const auto body = take(size_t(std::stoul("0" + response->header("content-length"))));
    if (!body) return std::nullopt;
    response->body = *body;
    return response;
  }
  std::optional<RawResponse> read_head() {
    RawResponse response;
    auto line = take_line();
    if (!line || line->size() < 12) return std::nullopt;
    response.status = std::stoi(line->substr(9, 3));
    while ((line = take_line()) && !line->empty()) {
      const size_t colon = line->find(": ");
      std::string name = line->substr(0, colon);
      for (char& c : name) c = char(std::tolower(static_cast<unsigned char>(c)));
      response.headers[name] = line->substr(colon + 2);
    }
    return line ? std::optional(response) : std::nullopt;
  }
  // The next part of a stream; empty at its end.
  std::optional<std::string> read_part() {
    const auto line = take_line();
    if (!line) return std::nullopt;
    size_t size = 0;
    std::from_chars(line->data(), line->data() + line->size(), size, 16);
    const auto part = take(size);
    if (!part || !take_line()) return std::nullopt;
    return part;
  }
  // All that the server sends until it closes.
  std::string read_all() {
    while (fill()) {
    }
    return std::exchange(received_, {});
  }
  // Whether the server closes, once all that it has sent is read.
  bool closed() {
    while (fill()) {
    }
    return true;
  }
  bool has_bytes() const { return !received_.empty() || readable(); }
  bool readable() const {
    pollfd state{socket_, POLLIN, 0};
    return ::poll(&state, 1, 0) == 1;
  }

  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  // As a process that crashes does: the connection is not closed but reset.
  void reset() {
    const linger at_once{1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
  }
  void finish_sending() { ::shutdown(socket_, SHUT_WR); }

 private:
  bool fill() {
    char bytes[16384];
    ssize_t count = 0;
    do {
      count = ::recv(socket_, bytes, sizeof bytes, 0);
    } while (count < 0 && errno == EINTR);
    if (count > 0) received_.append(bytes, size_t(count));
    return count > 0;
  }
  std::optional<std::string> take(size_t size) {
    while (received_.size() < size) {
      if (!fill()) return std::nullopt;
    }
    std::string taken = received_.substr(0, size);
    received_.erase(0, size);
    return taken;
  }
  std::optional<std::string> take_line() {
    size_t end = 0;
    while ((end = received_.find("\r\n")) == std::string::npos) {
      if (!fill()) return std::nullopt;
    }
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 2);
    return line;
  }

  int socket_;
  bool connected_ = false;
  std::string received_;
};

// What the events of a stream say.
struct StreamText {
  std::map<uint64_t, std::string> texts;  // by choice
  std::map<uint64_t, std::string> finish;
  std::optional<uint64_t> answer_tokens;  // if the usage was asked for
  std::string error;                      // its code
  bool done = false;                      // [DONE] came, and nothing after it
};

inline StreamText read_events(std::string_view body) {
  StreamText all;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    if (end != std::string_view::npos &&
        body.starts_with(":")) {  // a comment, which keeps a slow stream alive
      body.remove_prefix(end + 2);
      continue;
    }
    if (end == std::string_view::npos || !body.starts_with("data: ")) {
      ADD_FAILURE() << "not an event: " << body;
      break;
    }
    const std::string_view data = body.substr(6, end - 6);
    body.remove_prefix(end + 2);
    if (data == "[DONE]") {
      EXPECT_TRUE(body.empty());
      all.done = true;
      break;
    }
    const Json event = parse_json(data, "an event");
    if (event.contains("error")) {
      all.error = event["error"]["code"].get<std::string>();
      continue;
    }
    if (event.contains("usage") && event["usage"].is_object())
      all.answer_tokens = event["usage"]["completion_tokens"].get<uint64_t>();
    for (const Json& choice : event["choices"]) {
      const uint64_t index = choice["index"].get<uint64_t>();
      if (choice.contains("text")) all.texts[index] += choice["text"].get<std::string>();
      if (choice["finish_reason"].is_string()) all.finish[index] = choice["finish_reason"].get<std::string>();
    }
  }
  return all;
}

}  // namespace quire
