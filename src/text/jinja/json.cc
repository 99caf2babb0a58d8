#include "text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace quire::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}

  void write(const Value& value) {
    heap_.step();
    if (value.is_string()) {
      write_string(value.bytes());
    } else if (const auto* sequence = value.get_if<SequenceRef>();
               sequence && (*sequence)->kind <= SequenceKind::tuple) {
      write_list(**sequence);
    } else if (const auto* dict = value.get_if<DictRef>()) {
      write_dict(**dict);
    } else {
      out_ += scalar(value);
    }
  }

  std::string finish() { return std::move(out_); }

 private:
  std::string scalar(const Value& value) const {
    if (value.is_none()) return "null";
    if (const auto* flag = value.get_if<bool>()) return *flag ? "true" : "false";
    if (const auto* integer = value.get_if<int64_t>()) return fmt::format("{}", *integer);
    if (const auto* real = value.get_if<double>()) {
      if (std::isnan(*real)) return "NaN";
      if (std::isinf(*real)) return *real < 0 ? "-Infinity" : "Infinity";
      return float_repr(*real);
    }
    throw Failure("Object of type {} is not JSON serializable", value.type_name());
  }

  void write_list(const Sequence& list) {
    write_block('[', ']', list.items, [&](const Value& item) { write(item); });
  }

  void write_dict(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* left, const auto* right) {
        return compare(heap_, left->first, right->first) < 0;
      });
    }
    write_block('{', '}', entries, [&](const auto* entry) {
      write_string(entry->first.is_string() ? std::string(entry->first.bytes()) : scalar(entry->first));
      out_ += style_.key_separator;
      write(entry->second);
    });
  }

  template <class Items, class Each>
  void write_block(char open, char close, const Items& items, Each&& each) {
    out_ += open;
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) append(style_.item_separator);
      new_line();
      each(items[i]);
    }
    --level_;
    if (!items.empty()) new_line();
    out_ += close;
  }

  void reserve(size_t bytes) {
    heap_.copy_bytes(bytes);
    heap_.check_room(out_.size() + bytes);
  }

  void new_line() {
    if (!style_.indent) return;
    reserve(1 + style_.indent->size() * level_);
    out_ += '\n';
    for (size_t i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  void append(std::string_view piece) {
    reserve(piece.size());
    out_ += piece;
  }

  void write_string(std::string_view text) {
    reserve(text.size() + 2);
    out_ += '"';
    for (size_t i = 0; i < text.size();) {
      size_t bytes = 1;
      const char32_t character = char_at(text, i, &bytes);
      write_char(character, text.substr(i, bytes));
      i += bytes;
    }
    out_ += '"';
    heap_.check_room(out_.size());
  }

  void write_char(char32_t character, std::string_view bytes) {
    switch (character) {
      case '"':
        out_ += "\\\"";
        return;
      case '\\':
        out_ += "\\\\";
        return;
      case '\n':
        out_ += "\\n";
        return;
      case '\r':
        out_ += "\\r";
        return;
      case '\t':
        out_ += "\\t";
        return;
      case '\b':
        out_ += "\\b";
        return;
      case '\f':
        out_ += "\\f";
        return;
      default:
        break;
    }
    if (character >= 0x20 && (character < 0x7F || !style_.ensure_ascii)) {
      out_ += bytes;
    } else if (character < 0x10000) {
      out_ += fmt::format("\\u{:04x}", uint32_t(character));
    } else {
      const uint32_t rest = uint32_t(character) - 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    }
  }

  Heap& heap_;
  const JsonStyle& style_;
  std::string out_;
  size_t level_ = 0;
};

}  // namespace

std::string to_json(Heap& heap, const Value& value, const JsonStyle& style) {
  JsonWriter writer(heap, style);
  writer.write(value);
  return writer.finish();
}

}  // namespace quire::jinja
