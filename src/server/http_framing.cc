#include "server/http_framing.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace quire {
namespace {

constexpr std::string_view kTokenMarks = "!#$%&'*+-.^_`|~", kHostMarks = "-._~!$&'()*+;=:[]%";
constexpr uint32_t kMostLengthDigits = 18, kMostChunkDigits = 15;  // neither can overflow

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter_or_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// What methods and names of headers are made of.
bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return is_letter_or_digit(c) || kTokenMarks.find(c) != std::string_view::npos;
  });
}

// A name or an address, perhaps with a port.
bool is_host(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return is_letter_or_digit(c) || kHostMarks.find(c) != std::string_view::npos; });
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
}

bool same_word(std::string_view text, std::string_view in_lower_case) {
  return std::ranges::equal(text, in_lower_case, [](char a, char b) { return lower(a) == b; });
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  const char small = lower(c);
  return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

enum class Plus { is_itself, is_space };

std::string decode_percent(std::string_view text, Plus plus) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
    const bool space = text[i] == '+' && plus == Plus::is_space;
    decoded += escape ? char(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])) : space ? ' ' : text[i];
    if (escape) i += 2;
  }
  return decoded;
}

void read_target(std::string_view target, HttpRequest& request) {
  const size_t mark = target.find('?');
  request.path = decode_percent(target.substr(0, mark), Plus::is_itself);
  if (mark == std::string_view::npos) return;
  std::string_view rest = target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    const std::string_view value = equals == std::string_view::npos ? "" : pair.substr(equals + 1);
    request.query[decode_percent(pair.substr(0, equals), Plus::is_space)] =
        decode_percent(value, Plus::is_space);
  }
}

// Headers of which a second one would leave open which of them counts.
constexpr std::array<std::string_view, 10> kUnique = {
    "host",         "authorization",    "x-api-key", "content-length", "transfer-encoding",
    "content-type", "content-encoding", "origin",    "expect",         "access-control-request-headers"};

HttpProblem bad(const char* why) {
  return {400, why};
}

std::optional<HttpProblem> judge_target(const RequestHead& head) {
  if (!head.target.starts_with('/')) return bad("the request's target must be a path that begins with '/'");
  if (head.target.find('#') != std::string::npos) return bad("a request's target has no fragment");
  return std::nullopt;
}

std::optional<HttpProblem> judge_connection(std::string_view value, HeadJudgement& judgement,
                                            bool& wants_alive) {
  while (true) {
    const std::string_view word = trimmed(value.substr(0, value.find(',')));
    if (!word.empty() && !is_token(word)) return bad("the header Connection is not a list of words");
    if (same_word(word, "close")) judgement.keep_alive = false;
    if (same_word(word, "keep-alive")) wants_alive = true;
    if (value.find(',') == std::string_view::npos) return std::nullopt;
    value.remove_prefix(value.find(',') + 1);
  }
}

std::optional<HttpProblem> judge_length(std::string_view value, HeadJudgement& judgement) {
  if (value.empty() || value.size() > kMostLengthDigits || !std::ranges::all_of(value, is_digit))
    return bad("the header Content-Length is not a number");
  for (const char digit : value) judgement.length = judgement.length * 10 + uint64_t(digit - '0');
  return std::nullopt;
}

}  // namespace

HeadJudgement judge_head(const RequestHead& head) {
  HeadJudgement judgement;
  std::array<bool, kUnique.size()> seen{};
  bool wants_alive = false;
  const auto has = [&](std::string_view name) {
    return seen[size_t(std::ranges::find(kUnique, name) - kUnique.begin())];
  };
  const auto judge_field = [&](std::string_view name, std::string_view value) -> std::optional<HttpProblem> {
    const size_t unique = size_t(std::ranges::find(kUnique, name) - kUnique.begin());
    if (unique < kUnique.size() && std::exchange(seen[unique], true))
      return bad("a header that may come only once came twice");
    if (name == "host" && !is_host(value)) return bad("the header Host is not a name or an address");
    if (name == "content-length") return judge_length(value, judgement);
    if (name == "connection") return judge_connection(value, judgement, wants_alive);
    if (name == "transfer-encoding") {
      judgement.chunked = true;
      if (!head.http_1_1) return bad("HTTP/1.0 knows no Transfer-Encoding");
      if (!same_word(value, "chunked")) return bad("the only Transfer-Encoding known here is 'chunked'");
    }
    if (name == "expect" && head.http_1_1) {
      judgement.waits_for_continue = true;
      if (!same_word(value, "100-continue"))
        return HttpProblem{417, "the only thing to expect here is '100-continue'"};
    }
    return std::nullopt;
  };
  judgement.problem = judge_target(head);
  for (const auto& [name, value] : head.fields) {
    if (judgement.problem) return judgement;
    judgement.problem = judge_field(name, value);
  }
  if (judgement.problem) return judgement;
  if (has("content-length") && has("transfer-encoding"))
    judgement.problem = bad("Content-Length and Transfer-Encoding exclude each other");
  if (head.http_1_1 && !has("host")) judgement.problem = bad("the header Host is missing");
  if (!head.http_1_1 && !wants_alive) judgement.keep_alive = false;
  return judgement;
}

HttpRequest request_of(const RequestHead& head) {
  HttpRequest request;
  request.method = head.method;
  read_target(head.target, request);
  for (const auto& [name, value] : head.fields) {
    const auto [place, is_new] = request.headers.try_emplace(name, value);
    if (!is_new) place->second += ", " + value;  // lists may come in several lines
  }
  return request;
}

void RequestReader::fail(int status, const char* why) {
  problem_ = {status, why};
  state_ = State::wrong;
}

size_t RequestReader::take(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && wants_more()) {
    const bool data = state_ == State::body && (!judgement_.chunked || chunk_ == Chunk::data);
    if (data) {
      const auto part = size_t(std::min<uint64_t>(left_, bytes.size() - taken));
      body_.append(bytes.data() + taken, part);
      taken += part;
      left_ -= part;
      if (left_ > 0) continue;
      chunk_ = Chunk::data_end;
      if (!judgement_.chunked) state_ = State::done;
    } else if (state_ == State::body) {
      take_chunk_byte(bytes[taken++]);
    } else {
      take_head_byte(bytes[taken++]);
    }
  }
  return taken;
}

// Adds to the line. True: it has ended.
bool RequestReader::take_line_byte(char byte) {
  if (++head_bytes_ > most_head_bytes_) {
    fail(431, "the request's headers are too large");
  } else if (cr_) {
    cr_ = false;
    if (byte == '\n') return true;
    fail(400, "a line of the request ends in a bare CR");
  } else if (byte == '\r') {
    cr_ = true;
  } else if (byte == '\n') {
    fail(400, "a line of the request ends in a bare LF");
  } else if (is_control(byte)) {
    fail(400, "the request's head holds a control character");
  } else {
    line_ += byte;
  }
  return false;
}

void RequestReader::take_head_byte(char byte) {
  const bool begins = line_.empty() && !cr_;
  if (begins && (byte == ' ' || byte == '\t')) return fail(400, "a line of the request begins with a space");
  if (!take_line_byte(byte)) return;
  if (head_.method.empty()) {
    read_request_line();
  } else if (line_.empty()) {
    finish_head();
  } else {
    read_field();
  }
  line_.clear();
}

void RequestReader::read_request_line() {
  const std::string_view line = line_;
  const size_t first = line.find(' '), second = line.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos)
    return fail(400, "the request's first line is not 'METHOD /path HTTP/1.1'");
  const std::string_view method = line.substr(0, first), version = line.substr(second + 1);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  const bool plain = std::ranges::all_of(target, [](char c) { return c > ' ' && c < 0x7f; });
  if (!is_token(method) || target.empty() || !plain)
    return fail(400, "the request's first line is not 'METHOD /path HTTP/1.1'");
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    return fail(400, "the request's version is neither HTTP/1.1 nor HTTP/1.0");
  head_.method = method;
  head_.target = target;
  head_.http_1_1 = version == "HTTP/1.1";
}

void RequestReader::read_field() {
  const std::string_view line = line_;
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  if (colon == std::string_view::npos || !is_token(name))
    return fail(400, "a header of the request is not 'Name: value'");
  if (state_ != State::head) return;  // a trailer: nobody looks at it
  std::string small(name);
  std::ranges::transform(small, small.begin(), lower);
  head_.fields.emplace_back(std::move(small), trimmed(line.substr(colon + 1)));
}

void RequestReader::finish_head() {
  judgement_ = judge_head(head_);
  if (judgement_.problem) return fail(judgement_.problem->status, judgement_.problem->why);
  state_ = State::admitted;
}

void RequestReader::take_body(uint64_t most_bytes) {
  CHECK(state_ == State::admitted);
  head_bytes_ = 0;
  room_ = most_bytes;
  left_ = judgement_.length;
  if (left_ > room_) return fail(413, "the request's body is too large");
  state_ = judgement_.has_body() ? State::body : State::done;
}

void RequestReader::take_chunk_byte(char byte) {
  if (chunk_ == Chunk::trailer) return take_trailer_byte(byte);
  if (chunk_ == Chunk::data_end) {
    if (byte != (cr_ ? '\n' : '\r')) return fail(400, "a chunk of the request is longer than it says");
    cr_ = !cr_;
    if (!cr_) chunk_ = Chunk::size;
    return;
  }
  if (chunk_ == Chunk::size && !cr_ && byte != '\r' && byte != ';') return take_size_digit(byte);
  if (digits_ == 0) return fail(400, "a chunk of the request has no size");
  if (!take_line_byte(byte)) {
    line_.clear();  // extensions mean nothing here
    if (byte == ';') chunk_ = Chunk::extension;
    return;
  }
  end_of_size();
}

void RequestReader::take_size_digit(char byte) {
  const int digit = hex_digit(byte);
  if (digit < 0 || ++digits_ > kMostChunkDigits)
    return fail(400, "the size of a chunk of the request is not a hexadecimal number");
  left_ = left_ * 16 + uint64_t(digit);
}

void RequestReader::end_of_size() {
  digits_ = 0;
  if (left_ == 0) {
    chunk_ = Chunk::trailer;
    return;
  }
  if (left_ > room_) return fail(413, "the request's body is too large");
  room_ -= left_;
  chunk_ = Chunk::data;
}

void RequestReader::take_trailer_byte(char byte) {
  const bool begins = line_.empty() && !cr_;
  if (begins && (byte == ' ' || byte == '\t')) return fail(400, "a line of the request begins with a space");
  if (!take_line_byte(byte)) return;
  if (line_.empty()) {
    state_ = State::done;
  } else {
    read_field();
  }
  line_.clear();
}

}  // namespace quire
