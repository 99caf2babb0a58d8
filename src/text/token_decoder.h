#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer_spec.h"

namespace quire {

// The steps that turn tokens into text. Immutable; any thread may use it. The decoding itself is a Stream:
// whole texts go through it as well, so that text that comes in pieces is the same text.
class TokenDecoder {
 public:
  struct Piece {
    std::string text;
    bool verbatim = false;  // no step changes it
  };

  // One step of a stream. Emits pieces into the next step.
  class Stage {
   public:
    virtual ~Stage() = default;
    virtual void push(Piece piece, std::vector<Piece>& out) = 0;
    virtual void finish(std::vector<Piece>&) {}
  };

  class Stream {
   public:
    std::string push(Piece piece);  // what can be said now
    std::string finish();           // what was held back

   private:
    friend class TokenDecoder;
    std::string run(size_t stage, std::vector<Piece> pieces);
    std::vector<std::unique_ptr<Stage>> stages_;
  };

  TokenDecoder(std::vector<DecoderStep> steps, bool joined_by_spaces);
  TokenDecoder(TokenDecoder&&) noexcept;
  ~TokenDecoder();

  Stream start() const;  // the stream must not outlive the decoder

 private:
  struct Compiled;
  std::vector<DecoderStep> steps_;
  std::vector<std::unique_ptr<const Compiled>>
      compiled_;  // one per step, null where there is nothing to compile
  bool joined_by_spaces_;
};

}  // namespace quire
