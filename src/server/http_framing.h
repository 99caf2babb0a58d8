#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http_message.h"

// Where a request begins and ends in a stream of bytes. Knows no sockets: it is tested and fuzzed as functions over bytes.
// Whatever two programs could understand in two ways is refused, so that nothing can hide between a proxy and this
// server: folded lines, lines that end in a bare LF, a length that is given twice or beside a transfer coding, codings
// other than chunked, headers that must be unique and are not.
namespace quire {

// Why a request is not taken.
struct HttpProblem {
  int status = 400;
  const char* why = "";
};

// A request's first line and its headers, as they came.
struct RequestHead {
  std::string method, target;
  bool http_1_1 = true;  // else 1.0
  std::vector<std::pair<std::string, std::string>>
      fields;  // names in lower case, values without outer spaces
};

// What a head means for its connection.
struct HeadJudgement {
  std::optional<HttpProblem> problem;
  bool chunked = false;
  uint64_t length = 0;  // of the body that follows; unknown if it comes in chunks
  bool keep_alive = true;
  bool waits_for_continue = false;

  bool has_body() const { return chunked || length > 0; }
};
HeadJudgement judge_head(const RequestHead& head);

// The request of a head that is in order: path and query decoded, its body empty.
HttpRequest request_of(const RequestHead& head);

// Cuts one request out of bytes that come in pieces of any size. Use a new one for the next request.
class RequestReader {
 public:
  enum class State {
    head,      // wants more bytes
    admitted,  // the head is complete: it waits for take_body()
    body,      // wants more bytes
    done,
    wrong,  // problem() says why; nothing more of this connection can be understood
  };

  explicit RequestReader(size_t most_head_bytes) : most_head_bytes_(most_head_bytes) {}

  // Takes from the beginning of `bytes` what belongs to this request, and says how much that was.
  size_t take(std::string_view bytes);
  State state() const { return state_; }
  bool wants_more() const { return state_ == State::head || state_ == State::body; }
  bool empty() const { return head_bytes_ == 0; }  // nothing has come yet
  const HttpProblem& problem() const { return problem_; }

  // Once the head is complete.
  const RequestHead& head() const { return head_; }
  const HeadJudgement& judgement() const { return judgement_; }
  // Goes on to the body, which may have so many bytes.
  void take_body(uint64_t most_bytes);
  std::string& body() { return body_; }  // what has come of it; memory grows with it, whatever was announced

 private:
  enum class Chunk { size, extension, data, data_end, trailer };

  void take_head_byte(char byte);
  void take_chunk_byte(char byte);
  void take_trailer_byte(char byte);
  void take_size_digit(char byte);
  bool take_line_byte(char byte);
  void end_of_size();
  void read_request_line();
  void read_field();
  void finish_head();
  void fail(int status, const char* why);

  const size_t most_head_bytes_;
  State state_ = State::head;
  HttpProblem problem_;
  size_t head_bytes_ = 0;  // of the head; then of all chunk extensions and trailers together
  bool cr_ = false;        // the last byte: a LF must follow
  std::string line_;
  RequestHead head_;
  HeadJudgement judgement_;

  std::string body_;
  uint64_t left_ = 0;  // bytes of the body, or of the current chunk, that are still to come
  uint64_t room_ = 0;  // bytes that the body may still grow by
  Chunk chunk_ = Chunk::size;
  uint32_t digits_ = 0;  // of the chunk's size
};

}  // namespace quire
