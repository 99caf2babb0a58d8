#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "chat/argument_types.h"
#include "chat/call_matcher.h"
#include "chat/declared_reader.h"
#include "chat/output_event.h"
#include "chat/response_template.h"

namespace quire {

// Where an answer begins: what the prompt has said of it already.
struct ResponseStart {
  int32_t reasoning = -1;   // which of the template's forms the prompt has opened; -1: none
  std::string header = {};  // of a template with channels: what follows the beginning of the message
  std::string begun = {};   // of a template that the model brings: what of the answer the prompt holds
};

struct ResponseOptions {
  ResponseStart start = {};
  ArgumentTypes types = {};
  bool calls = true;  // else their text is the answer's
};

// Reads an answer as it comes. Its events are the same however the text is cut into pieces; what cannot be parsed is text,
// and nothing is lost but what only marks. A call is told of when it is complete. Time grows with the text alone, memory
// with the longest call.
class ResponseParser {
 public:
  // The template must outlive it.
  ResponseParser(const ResponseTemplate& form, ResponseOptions options);

  void push(std::string_view text, OutputEvents& events);
  void finish(OutputEvents& events);

  uint32_t calls() const { return declared_ ? declared_->calls() : calls_; }

 private:
  enum class Mode : uint8_t { text, reasoning, call, header, between, tool };
  // What a literal means where it stands.
  struct Marker {
    enum class Kind : uint8_t {
      reasoning_open,
      reasoning_close,
      call,
      section_close,
      silent,
      message_end,
      message_begin
    };
    std::string literal;
    Kind kind = Kind::silent;
    uint32_t form = 0;
  };

  void feed(std::string_view text);
  void feed_text(char c);
  void feed_call(char c);
  void feed_header(char c);
  void settle_pending(bool last);
  void meet(const Marker& marker);
  void set_mode(Mode mode);
  std::vector<Marker> markers() const;

  void say(char c);
  void emit(OutputEvent::Kind kind, std::string_view text);
  void emit_call(const ParsedCall& call);
  void try_bare(char c);
  void begin_call(std::vector<uint32_t> forms, std::string text, bool in_section);
  bool attempt(bool last);
  void give_up();
  void read_header();
  void end_message(std::string_view marker);

  const ResponseTemplate& form_;
  const ResponseOptions options_;
  std::unique_ptr<DeclaredReader> declared_;  // if the template is the model's own: it does all
  OutputEvents* events_ = nullptr;
  Mode mode_ = Mode::text;
  std::vector<Marker> active_;  // of the mode
  std::string pending_;         // the beginning of a marker, perhaps
  std::string space_;           // that may stand at the end
  bool structured_ =
      false;  // something else than text has been: space around the text is not the model's words
  bool said_text_ = false, said_reasoning_ = false, new_reasoning_ = false;
  uint32_t region_ = 0;   // of reasoning
  int32_t section_ = -1;  // the form whose section is open
  bool after_bare_ = false;

  // A call that is being read.
  std::string call_;
  struct Candidate {
    uint32_t form = 0;
    CallEnd end;
  };
  std::vector<Candidate> candidates_;
  bool call_in_section_ = false;
  size_t next_look_ = 0;  // its size when it is judged though nothing ends
  uint32_t attempts_ = 0, given_up_ = 0;
  uint32_t calls_ = 0;

  // Of templates with channels.
  std::string header_;  // of the message, or the whole body of one that is a call
  std::string tool_;    // that it is for
};

// All of a text at once.
WholeOutput parse_response(const ResponseTemplate& form, ResponseOptions options, std::string_view text);

}  // namespace quire
