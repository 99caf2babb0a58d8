#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "chat/argument_types.h"
#include "chat/declared_form.h"
#include "chat/output_event.h"
#include "text/utf8.h"

namespace quire {

// Reads an answer by the response_template that its model brings, as it comes: what Transformers' parse_response makes of it, with
// these differences. Texts of a field that comes again follow one another, as what was told cannot be taken back. A call that cannot be
// parsed is text. What a mark is does not depend on how the text is cut.
class DeclaredReader {
 public:
  // `begun`: what of the answer the prompt holds; it is read and not told of. `calls`: else their text is the answer's. The form must
  // outlive it.
  DeclaredReader(const DeclaredForm& form, ArgumentTypes types, bool calls, std::string_view begun);

  void push(std::string_view text, OutputEvents& events);
  void finish(OutputEvents& events);

  uint32_t calls() const { return calls_; }

 private:
  struct Meeting {
    Match match = Match::no;
    int32_t opens = -1;  // the field that it opens; -1: it closes the one that is open
    Pattern::Found found = {};
  };

  void read(bool last);
  Meeting meeting_at(size_t at, bool last);
  void watch();
  void take(size_t end);
  void open(int32_t field, const Pattern::Found& found, std::string_view mark);
  void close(std::string_view mark);
  void say(DeclaredField::Kind kind, std::string_view text, bool strip);
  void emit(OutputEvent::Kind kind, std::string_view text);
  void tell_calls();
  void add_calls(const OrderedJson& value, std::vector<std::pair<std::string, OrderedJson>>& calls) const;
  const DeclaredField* field() const { return open_ < 0 ? nullptr : &form_.fields[size_t(open_)]; }

  const DeclaredForm& form_;
  const ArgumentTypes types_;
  const bool read_calls_;
  Utf8Stream stream_;
  OutputEvents* events_ = nullptr;

  std::string buffer_;
  size_t at_ = 0;         // what stands before it is settled
  size_t look_ = 0;       // where the next mark may begin
  size_t next_look_ = 0;  // the buffer's size when it is worth while again
  size_t begun_ = 0;      // so many bytes of the buffer are the prompt's

  int32_t open_ = -1;                     // the field
  std::array<bool, 256> may_begin_ = {};  // a mark that counts now
  // Of a text that is open, and the one before.
  std::string space_;
  bool said_here_ = false;
  std::array<bool, 2> said_ = {};  // by kind
  // Of a call that is open.
  std::string mark_, body_;
  Pattern::Groups captures_;
  bool broken_ = false;
  uint32_t given_up_ = 0, calls_ = 0;
  uint32_t too_much_ = 0;  // how often a mark took too long to look for
};

}  // namespace quire
