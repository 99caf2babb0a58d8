#include "chat/declared_reader.h"

#include <algorithm>

#include "base/error.h"

namespace quire {
namespace {

constexpr size_t kMostBodyBytes = size_t(4) << 20, kMostHeldSpace = 4096, kShortHold = 64, kMostKept = 256;
constexpr uint32_t kMostBroken = 8, kMostTooMuch = 100;

}  // namespace

DeclaredReader::DeclaredReader(const DeclaredForm& form, ArgumentTypes types, bool calls,
                               std::string_view begun)
    : form_(form), types_(std::move(types)), read_calls_(calls), open_(form.leftover) {
  watch();
  OutputEvents unheard;
  events_ = &unheard;
  buffer_ = stream_.push(begun);
  begun_ = buffer_.size();
  read(false);
  calls_ = 0;
  events_ = nullptr;
}

void DeclaredReader::push(std::string_view text, OutputEvents& events) {
  events_ = &events;
  buffer_ += stream_.push(text);
  if (buffer_.size() >= next_look_) read(false);
  events_ = nullptr;
}

void DeclaredReader::finish(OutputEvents& events) {
  events_ = &events;
  buffer_ += stream_.finish();
  read(true);
  close({});
  events_ = nullptr;
}

// Which bytes a mark may begin with that counts where the text is.
void DeclaredReader::watch() {
  may_begin_ = {};
  for (int byte = 0; byte < 256; ++byte) {
    const auto may = [&](const std::optional<DeclaredMark>& mark) {
      return mark && mark->may_begin_with(char(byte));
    };
    bool any = open_ >= 0 && may(field()->close);
    if (open_ == form_.leftover)
      any = any || std::ranges::any_of(form_.fields, [&](const DeclaredField& one) { return may(one.open); });
    may_begin_[size_t(byte)] = any;
  }
}

DeclaredReader::Meeting DeclaredReader::meeting_at(size_t at, bool last) {
  Meeting best;
  bool more = false;
  const auto consider = [&](const DeclaredMark& mark, int32_t opens) {
    Pattern::Found found;
    if (too_much_ >= kMostTooMuch) return;  // what is left is text
    bool too_much = false;
    const Match match = mark.at(buffer_, at, last, found, too_much);
    too_much_ += too_much ? 1 : 0;
    more = more || match == Match::more;
    if (match != Match::yes) return;
    // Nothing at all closes what has not begun, and opens nothing.
    const bool empty = found.end == found.begin;
    if (empty && (opens >= 0 || open_ == form_.leftover)) return;
    // The longest counts, then what opens, then the first by name.
    if (best.match == Match::yes && found.end <= best.found.end) return;
    best = {.match = match, .opens = opens, .found = std::move(found)};
  };
  if (open_ == form_.leftover) {
    for (size_t i = 0; i < form_.fields.size(); ++i) {
      const DeclaredField& one = form_.fields[i];
      const bool counts = one.kind != DeclaredField::Kind::calls || (read_calls_ && given_up_ < kMostBroken);
      if (one.open && counts) consider(*one.open, int32_t(i));
    }
  }
  if (open_ >= 0 && field()->close) consider(*field()->close, -1);
  if (more) best.match = Match::more;
  return best;
}

void DeclaredReader::read(bool last) {
  while (true) {
    while (look_ < buffer_.size() && !may_begin_[static_cast<unsigned char>(buffer_[look_])]) ++look_;
    while (look_ < buffer_.size() && (static_cast<unsigned char>(buffer_[look_]) & 0xC0) == 0x80) ++look_;
    if (look_ >= buffer_.size()) break;
    const Meeting meeting = meeting_at(look_, last);
    if (meeting.match == Match::more) break;
    if (meeting.match == Match::no) {
      look_ += utf8_length(buffer_[look_]);
      continue;
    }
    take(look_);
    const std::string mark = buffer_.substr(at_, meeting.found.end - at_);
    at_ = look_ = meeting.found.end;
    if (meeting.opens >= 0) {
      close({});
      open(meeting.opens, meeting.found, mark);
    } else {
      close(mark);
    }
    watch();
  }
  take(std::min(look_, buffer_.size()));
  // What is held back is looked at again once it has grown by a part of its length.
  const size_t held = buffer_.size() - at_;
  if (at_ > kMostKept) {
    size_t cut = at_ - kMostKept;
    while ((static_cast<unsigned char>(buffer_[cut]) & 0xC0) == 0x80) ++cut;
    buffer_.erase(0, cut);
    begun_ -= std::min(begun_, cut);
    at_ -= cut;
    look_ -= cut;
  }
  next_look_ = held > kShortHold ? buffer_.size() + held / 4 : 0;
}

// The text up to `end` belongs to the field that is open.
void DeclaredReader::take(size_t end) {
  const size_t begin = std::max(at_, std::min(begun_, end));
  at_ = end;
  if (open_ < 0 || begin >= end) return;
  const std::string_view text = std::string_view(buffer_).substr(begin, end - begin);
  const DeclaredField& one = *field();
  if (one.kind != DeclaredField::Kind::calls) return say(one.kind, text, one.content.strip);
  if (broken_) return say(DeclaredField::Kind::content, text, true);
  body_ += text;
  if (body_.size() <= kMostBodyBytes) return;
  broken_ = true;
  say(DeclaredField::Kind::content, mark_ + body_, true);
  body_.clear();
}

void DeclaredReader::open(int32_t field, const Pattern::Found& found, std::string_view mark) {
  open_ = field;
  mark_ = mark;
  captures_ = found.groups;
  body_.clear();
  broken_ = false;
  said_here_ = false;
  space_.clear();
}

void DeclaredReader::close(std::string_view mark) {
  if (open_ >= 0 && field()->kind == DeclaredField::Kind::calls) {
    if (!broken_) {
      try {
        tell_calls();
      } catch (const Error&) {
        broken_ = true;
        space_.clear();
        said_here_ = false;
        say(DeclaredField::Kind::content, mark_ + body_, true);
      }
    }
    if (broken_) {
      ++given_up_;
      say(DeclaredField::Kind::content, mark, true);
    }
  }
  open_ = form_.leftover;
  body_.clear();
  broken_ = false;
  said_here_ = false;
  space_.clear();
}

void DeclaredReader::say(DeclaredField::Kind kind, std::string_view text, bool strip) {
  const auto to =
      kind == DeclaredField::Kind::reasoning ? OutputEvent::Kind::reasoning : OutputEvent::Kind::text;
  bool& said = said_[kind == DeclaredField::Kind::reasoning];
  if (strip && !said_here_) {
    while (!text.empty() && stripped(text.substr(0, 1)).empty()) text.remove_prefix(1);
  }
  if (text.empty()) return;
  if (!said_here_ && said) emit(to, open_ >= 0 ? std::string_view(field()->join) : "\n");
  said_here_ = said = true;
  if (!strip) return emit(to, text);
  // Space at the end may be the field's end.
  size_t end = text.size();
  while (end > 0 && stripped(text.substr(end - 1, 1)).empty()) --end;
  if (end > 0) {
    emit(to, space_);
    space_.clear();
    emit(to, text.substr(0, end));
  }
  space_ += text.substr(end);
  if (space_.size() <= kMostHeldSpace) return;
  emit(to, space_);
  space_.clear();
}

void DeclaredReader::emit(OutputEvent::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!events_->empty() && events_->back().kind == kind) {
    events_->back().text += text;
  } else {
    events_->push_back({.kind = kind, .text = std::string(text)});
  }
}

void DeclaredReader::add_calls(const OrderedJson& value,
                               std::vector<std::pair<std::string, OrderedJson>>& calls) const {
  if (value.is_array()) {
    for (const OrderedJson& one : value) add_calls(one, calls);
    return;
  }
  if (!value.is_object()) throw Error("a call must be an object");
  const auto inner = value.find("function");
  const OrderedJson& function = inner != value.end() && inner->is_object() ? *inner : value;
  const auto name = function.find("name"), arguments = function.find("arguments");
  if (name == function.end() || !name->is_string() || name->get_ref<const std::string&>().empty())
    throw Error("a call has no name");
  OrderedJson given = arguments == function.end() ? OrderedJson::object() : *arguments;
  if (given.is_null()) given = OrderedJson::object();
  if (!given.is_object()) throw Error("a call's arguments must be an object");
  types_.cast(name->get<std::string>(), given);
  calls.emplace_back(name->get<std::string>(), std::move(given));
}

void DeclaredReader::tell_calls() {
  const DeclaredField& one = *field();
  OrderedJson value = content_value(one.content, body_);
  OrderedJson scope = OrderedJson::object();
  for (const auto& [name, words] : captures_) scope[name] = words;
  if (one.transform.is_null()) {
    // As it is.
  } else if (!one.transform_each) {
    scope["content"] = std::move(value);
    value = transformed(one.transform, scope);
  } else {
    if (!value.is_array()) throw Error("a field of calls must be a list");
    for (OrderedJson& each : value) {
      if (!each.is_object()) throw Error("a field of calls must hold objects");
      OrderedJson all = scope;
      for (const auto& [key, member] : each.items()) all[key] = member;
      each = transformed(one.transform, all);
    }
  }
  std::vector<std::pair<std::string, OrderedJson>> calls;
  add_calls(value, calls);
  using Kind = OutputEvent::Kind;
  for (const auto& [name, arguments] : calls) {
    events_->push_back({.kind = Kind::call_begin, .text = name, .call = calls_});
    events_->push_back({.kind = Kind::call_arguments,
                        .text = arguments.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
                        .call = calls_});
    events_->push_back({.kind = Kind::call_end, .text = {}, .call = calls_});
    ++calls_;
  }
}

}  // namespace quire
