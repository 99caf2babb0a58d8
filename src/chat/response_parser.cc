#include "chat/response_parser.h"

#include <algorithm>

#include "base/error.h"

namespace quire {
namespace {

constexpr size_t kMostCallBytes = size_t(4) << 20, kMostHeaderBytes = 400, kMostSpace = 4096, kFirstLook = 32;
constexpr uint32_t kMostAttempts = 256, kMostGivenUp = 32;

constexpr std::string_view kMessageEnds[] = {"<|end|>", "<|call|>", "<|return|>", "<|eom|>", "<|eot|>"};
constexpr std::string_view kMessageBegin = "<|start|>", kHeaderEnd = "<|message|>";

// What a header says the message is for: " to=functions.f"; empty: for the reader.
std::string recipient(std::string_view header) {
  const size_t at = header.find("to=");
  if (at == std::string_view::npos) return {};
  const std::string_view rest = header.substr(at + 3);
  return std::string(rest.substr(0, rest.find_first_of(" \n\t<")));
}

}  // namespace

ResponseParser::ResponseParser(const ResponseTemplate& form, ResponseOptions options)
    : form_(form), options_(std::move(options)) {
  if (form_.declared) {
    declared_ = std::make_unique<DeclaredReader>(*form_.declared, options_.types, options_.calls,
                                                 options_.start.begun);
  } else if (form_.channels) {
    header_ = options_.start.header;
    if (header_.ends_with(kHeaderEnd)) {
      read_header();
    } else {
      set_mode(Mode::header);
    }
  } else if (options_.start.reasoning >= 0 && size_t(options_.start.reasoning) < form_.reasoning.size()) {
    region_ = uint32_t(options_.start.reasoning);
    structured_ = true;
    set_mode(Mode::reasoning);
  } else {
    set_mode(Mode::text);
  }
}

void ResponseParser::set_mode(Mode mode) {
  mode_ = mode;
  active_ = markers();
}

std::vector<ResponseParser::Marker> ResponseParser::markers() const {
  using Kind = Marker::Kind;
  std::vector<Marker> all;
  const auto add = [&](std::string literal, Kind kind, uint32_t form = 0) {
    if (literal.empty()) return;
    const bool known = std::ranges::any_of(
        all, [&](const Marker& marker) { return marker.literal == literal && marker.kind == kind; });
    if (!known) all.push_back({std::move(literal), kind, form});
  };
  if (mode_ == Mode::between) {
    add(std::string(kMessageBegin), Kind::message_begin);
    return all;
  }
  const bool reads = mode_ == Mode::text || mode_ == Mode::reasoning || mode_ == Mode::tool;
  if (form_.channels && reads) {
    for (const std::string_view end : kMessageEnds) add(std::string(end), Kind::message_end);
    add(std::string(kMessageBegin), Kind::message_begin);
  }
  if (mode_ == Mode::reasoning && !form_.channels) {
    add(form_.reasoning[region_].close, Kind::reasoning_close, region_);
    if (!said_reasoning_)
      add(form_.reasoning[region_].open, Kind::silent);  // the prompt has opened it already
  }
  if (mode_ != Mode::text) return all;
  for (uint32_t i = 0; i < form_.reasoning.size(); ++i) {
    add(form_.reasoning[i].open, Kind::reasoning_open, i);
    if (!said_text_) add(form_.reasoning[i].close, Kind::reasoning_close, i);
  }
  if (options_.calls && given_up_ < kMostGivenUp) {
    for (uint32_t i = 0; i < form_.calls.size(); ++i) {
      add(call_trigger(form_.calls[i], false), Kind::call, i);
      if (section_ == int32_t(i)) {
        add(call_trigger(form_.calls[i], true), Kind::call, i);
        add(form_.calls[i].section_close, Kind::section_close, i);
      }
    }
  }
  for (const std::string& literal : form_.silent) add(literal, Kind::silent);
  return all;
}

void ResponseParser::push(std::string_view text, OutputEvents& events) {
  if (declared_) return declared_->push(text, events);
  events_ = &events;
  feed(text);
  events_ = nullptr;
}

void ResponseParser::feed(std::string_view text) {
  for (const char c : text) {
    switch (mode_) {
      case Mode::call:
        feed_call(c);
        break;
      case Mode::header:
        feed_header(c);
        break;
      default:
        feed_text(c);
    }
  }
}

void ResponseParser::feed_text(char c) {
  if (mode_ == Mode::text && pending_.empty()) {
    try_bare(c);
    if (mode_ == Mode::call) return;
  }
  pending_ += c;
  settle_pending(false);
}

// A call that no marker announces: only where nothing but calls has been said.
void ResponseParser::try_bare(char c) {
  if (!options_.calls || given_up_ >= kMostGivenUp) return;
  const bool in_section = section_ >= 0 && call_trigger(form_.calls[size_t(section_)], true).empty();
  if (said_text_ && !in_section) return;
  if (std::ranges::any_of(active_, [&](const Marker& marker) { return marker.literal[0] == c; })) return;
  if (calls_ > 0 && !after_bare_ && !in_section) return;
  std::vector<uint32_t> forms;
  for (uint32_t i = 0; i < form_.calls.size(); ++i) {
    const CallForm& call = form_.calls[i];
    if (!(call.is_bare() || (in_section && section_ == int32_t(i)))) continue;
    if (c == '[' || (c == '{' && call.body == CallForm::Body::json)) forms.push_back(i);
  }
  if (!forms.empty()) begin_call(std::move(forms), std::string(1, c), in_section);
}

// Takes from the front of what is pending all that can be no marker's beginning.
void ResponseParser::settle_pending(bool last) {
  while (!pending_.empty()) {
    const Marker* met = nullptr;  // the longest that stands there
    bool may_grow = false;
    for (const Marker& marker : active_) {
      if (pending_.starts_with(marker.literal)) {
        if (met == nullptr || met->literal.size() < marker.literal.size()) met = &marker;
      } else if (marker.literal.starts_with(pending_)) {
        may_grow = true;
      }
    }
    if (may_grow && !last) return;
    if (met == nullptr) {
      say(pending_.front());
      pending_.erase(0, 1);
      continue;
    }
    const Marker marker = *met;
    std::string rest = pending_.substr(marker.literal.size());
    pending_.clear();
    meet(marker);
    feed(rest);
    if (!last) return;
  }
}

void ResponseParser::meet(const Marker& marker) {
  using Kind = Marker::Kind;
  if (marker.kind != Kind::call) {
    structured_ = true;
    after_bare_ = false;
  }
  switch (marker.kind) {
    case Kind::reasoning_open:
      region_ = marker.form;
      new_reasoning_ = said_reasoning_;
      space_.clear();
      set_mode(Mode::reasoning);
      break;
    case Kind::reasoning_close:
      if (mode_ == Mode::reasoning) space_.clear();
      set_mode(Mode::text);
      break;
    case Kind::section_close:
      section_ = -1;
      set_mode(Mode::text);
      break;
    case Kind::silent:
      break;
    case Kind::message_end:
    case Kind::message_begin:
      end_message(marker.literal);
      break;
    case Kind::call: {
      std::vector<uint32_t> forms;
      const bool in_section =
          section_ == int32_t(marker.form) && marker.literal == call_trigger(form_.calls[marker.form], true);
      for (uint32_t i = 0; i < form_.calls.size(); ++i) {
        if (call_trigger(form_.calls[i], in_section && section_ == int32_t(i)) == marker.literal)
          forms.push_back(i);
      }
      begin_call(std::move(forms), marker.literal, in_section);
      break;
    }
  }
}

void ResponseParser::begin_call(std::vector<uint32_t> forms, std::string text, bool in_section) {
  candidates_.clear();
  for (const uint32_t form : forms) candidates_.push_back({form, CallEnd(form_.calls[form])});
  for (Candidate& candidate : candidates_) {
    for (const char c : text) candidate.end.push(c);
  }
  call_ = std::move(text);
  call_in_section_ = in_section;
  attempts_ = 0;
  next_look_ = kFirstLook;
  set_mode(Mode::call);
}

void ResponseParser::feed_call(char c) {
  call_ += c;
  bool ends = false;
  for (Candidate& candidate : candidates_) {
    candidate.end.push(c);
    ends = ends || candidate.end.may_be_here(call_);
  }
  if (ends || call_.size() >= next_look_) attempt(false);
}

// Whether the call is complete, or will never be.
bool ResponseParser::attempt(bool last) {
  if (call_.size() >= next_look_) {
    next_look_ = call_.size() * 2;
  } else {
    ++attempts_;
  }
  bool hope = false;
  for (const auto& [i, end] : candidates_) {
    std::vector<ParsedCall> calls;
    const bool in_section = call_in_section_ && section_ == int32_t(i);
    const Match match = match_call(form_.calls[i], {call_, in_section}, options_.types, calls);
    if (match == Match::yes) {
      structured_ = true;
      after_bare_ = form_.calls[i].is_bare();
      section_ = form_.calls[i].section_open.empty() ? -1 : int32_t(i);
      call_.clear();
      set_mode(Mode::text);
      for (const ParsedCall& call : calls) emit_call(call);
      return true;
    }
    hope = hope || match == Match::more;
  }
  if (!hope || last || attempts_ > kMostAttempts || call_.size() > kMostCallBytes) give_up();
  return false;
}

// Its first character is text; what follows may be something else.
void ResponseParser::give_up() {
  ++given_up_;
  const std::string text = std::move(call_);
  call_.clear();
  bool bare = true;
  std::string trigger(1, text[0]);
  for (const auto& [i, end] : candidates_) {
    const std::string literal = call_trigger(form_.calls[i], call_in_section_);
    if (!literal.empty() && text.starts_with(literal)) trigger = literal, bare = false;
  }
  mode_ = Mode::text;
  if (bare) after_bare_ = false;
  for (const char c : trigger) say(c);
  set_mode(Mode::text);
  feed(std::string_view(text).substr(trigger.size()));
}

void ResponseParser::say(char c) {
  if (mode_ == Mode::between) return;  // between two messages nothing is said
  if (mode_ == Mode::tool) {
    header_ += c;
    return;
  }
  const bool reasoning = mode_ == Mode::reasoning;
  if (is_blank(c) && space_.size() < kMostSpace) {
    space_ += c;
    return;
  }
  if (!reasoning && after_bare_ && (c == ';' || c == ',')) return;  // between calls
  if (!reasoning) after_bare_ = false;
  bool& said = reasoning ? said_reasoning_ : said_text_;
  const auto kind = reasoning ? OutputEvent::Kind::reasoning : OutputEvent::Kind::text;
  if (reasoning && new_reasoning_) {
    emit(kind, "\n");
    new_reasoning_ = false;
  } else if (said || !(structured_ || reasoning)) {
    emit(kind, space_);
  }
  space_.clear();
  emit(kind, {&c, 1});
  if (!std::exchange(said, true)) set_mode(mode_);  // other markers count from here on
}

void ResponseParser::emit(OutputEvent::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!events_->empty() && events_->back().kind == kind && kind <= OutputEvent::Kind::reasoning) {
    events_->back().text += text;
    return;
  }
  events_->push_back({.kind = kind, .text = std::string(text)});
}

void ResponseParser::emit_call(const ParsedCall& call) {
  using Kind = OutputEvent::Kind;
  const std::string arguments = call.arguments.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  events_->push_back({.kind = Kind::call_begin, .text = call.name, .call = calls_});
  events_->push_back({.kind = Kind::call_arguments, .text = arguments, .call = calls_});
  events_->push_back({.kind = Kind::call_end, .text = {}, .call = calls_});
  ++calls_;
}

void ResponseParser::feed_header(char c) {
  header_ += c;
  if (header_.ends_with(kHeaderEnd)) {
    read_header();
  } else if (header_.size() > kMostHeaderBytes || c == '\n') {  // this is no header
    const std::string text = std::move(header_);
    header_.clear();
    set_mode(Mode::text);
    feed(text);
  }
}

// The header is complete: who is meant by the message.
void ResponseParser::read_header() {
  const std::string header = std::move(header_);
  header_.clear();
  tool_ = recipient(header);
  structured_ = true;
  space_.clear();
  const bool analysis = header.find("analysis") != std::string::npos || tool_ == "self";
  // Models call in any channel; some write the call into the message in a form of its own.
  const bool calls = options_.calls && !tool_.empty() && tool_ != "self" && form_.calls.empty();
  if (analysis) new_reasoning_ = said_reasoning_;
  set_mode(calls                                                ? Mode::tool
           : analysis && !(tool_.size() > 0 && tool_ != "self") ? Mode::reasoning
                                                                : Mode::text);
}

void ResponseParser::end_message(std::string_view marker) {
  if (mode_ == Mode::tool) {
    const std::string body = std::move(header_);
    header_.clear();
    std::string name = tool_.starts_with("functions.") ? tool_.substr(10) : tool_;
    OrderedJson arguments;
    try {
      arguments = parse_ordered_json(body.empty() ? "{}" : body, "a call");
    } catch (const Error&) {
    }
    if (arguments.is_object() && !name.empty()) {
      emit_call({std::move(name), std::move(arguments)});
    } else {
      mode_ = Mode::text;
      for (const char c : body) say(c);
    }
  } else if (mode_ == Mode::reasoning) {
    space_.clear();
  }
  set_mode(marker == kMessageBegin ? Mode::header : Mode::between);
}

void ResponseParser::finish(OutputEvents& events) {
  if (declared_) return declared_->finish(events);
  events_ = &events;
  // What is given up may hold another that is not complete.
  while (true) {
    if (mode_ == Mode::call) {
      attempt(true);
    } else if (mode_ == Mode::header) {
      const std::string text = std::move(header_);
      header_.clear();
      set_mode(Mode::text);
      if (text.find("<|channel|>") == std::string::npos && text != "assistant") feed(text);
    } else if (!pending_.empty()) {
      settle_pending(true);
    } else {
      break;
    }
  }
  if (mode_ == Mode::tool) end_message(kMessageEnds[0]);
  if (mode_ == Mode::text && !structured_) emit(OutputEvent::Kind::text, space_);
  space_.clear();
  events_ = nullptr;
}

WholeOutput parse_response(const ResponseTemplate& form, ResponseOptions options, std::string_view text) {
  ResponseParser parser(form, std::move(options));
  OutputEvents events;
  parser.push(text, events);
  parser.finish(events);
  WholeOutput output;
  for (const OutputEvent& event : events) output.add(event);
  return output;
}

}  // namespace quire
