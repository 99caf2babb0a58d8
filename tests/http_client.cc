#include "http_client.h"

#include <algorithm>
#include <cctype>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

namespace quire {

std::string HttpReply::error(const char* field) const {
  const Json value = json().at("error").at(field);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

HttpClient::HttpClient(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    throw Error("cannot connect to port {}", port);
}

void HttpClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return;  // the server has had enough; its reply may be there to read
    bytes.remove_prefix(size_t(count));
  }
}

void HttpClient::request(std::string_view method, std::string_view target, std::string_view body,
                         std::string_view headers) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: test\r\n{}", method, target, headers);
  if (!body.empty())
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  send(text + "\r\n" + std::string(body));
}

bool HttpClient::receive() {
  char bytes[16384];
  const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
  if (count <= 0) return false;
  received_.append(bytes, size_t(count));
  return true;
}

bool HttpClient::at_end() {
  return received_.empty() && !receive();
}

std::string HttpClient::read_line() {
  size_t end = 0;
  while ((end = received_.find("\r\n")) == std::string::npos) {
    if (!receive()) throw Error("the connection ended inside a line: '{}'", received_);
  }
  const std::string line = received_.substr(0, end);
  received_.erase(0, end + 2);
  return line;
}

std::string HttpClient::read_bytes(size_t count) {
  while (received_.size() < count) {
    if (!receive()) throw Error("the connection ended {} bytes early", count - received_.size());
  }
  const std::string bytes = received_.substr(0, count);
  received_.erase(0, count);
  return bytes;
}

HttpReply HttpClient::read_head() {
  HttpReply reply;
  const std::string first = read_line();
  reply.version = first.substr(0, first.find(' '));
  reply.status = std::stoi(first.substr(reply.version.size() + 1));
  for (std::string line = read_line(); !line.empty(); line = read_line()) {
    const size_t colon = line.find(':');
    std::string name = line.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    reply.headers[name] = line.substr(line.find_first_not_of(' ', colon + 1));
  }
  stream_.clear();
  chunked_ = reply.header("transfer-encoding") == "chunked";
  const std::string length = reply.header("content-length");
  left_ = length.empty() ? std::nullopt : std::optional<size_t>(std::stoul(length));
  return reply;
}

bool HttpClient::read_chunk() {
  if (left_) {
    const size_t count = std::exchange(*left_, 0);
    stream_ += read_bytes(count);
    return count > 0;
  }
  if (!chunked_) {
    if (received_.empty() && !receive()) return false;
    stream_ += std::exchange(received_, {});
    return true;
  }
  const size_t size = std::stoul(read_line(), nullptr, 16);
  stream_ += read_bytes(size);
  if (!read_line().empty()) throw Error("a chunk is longer than it says");
  return size > 0;
}

HttpReply HttpClient::read_reply(Body body) {
  HttpReply reply = read_head();
  if (body == Body::stays || reply.status == 204) return reply;
  while (read_chunk()) {
  }
  reply.body = std::exchange(stream_, {});
  return reply;
}

std::optional<std::string> HttpClient::read_event() {
  for (;;) {
    std::optional<std::string> event = read_event_or_comment();
    if (!event || !event->starts_with(": ")) return event;
  }
}

std::optional<std::string> HttpClient::read_event_or_comment() {
  size_t end = 0;
  while ((end = stream_.find("\n\n")) == std::string::npos) {
    if (read_chunk()) continue;
    if (!stream_.empty()) throw Error("the stream ended inside an event: '{}'", stream_);
    return std::nullopt;
  }
  const std::string event = stream_.substr(0, end);
  stream_.erase(0, end + 2);
  if (event.starts_with(": ") && event.find('\n') == std::string::npos) return event;
  if (!event.starts_with("data: ") || event.find('\n') != std::string::npos)
    throw Error("not one line of data: '{}'", event);
  return event.substr(6);
}

}  // namespace quire
