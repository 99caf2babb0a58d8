// Any text as an answer, in any form: no error, the same whole and in pieces, in bounded time and memory.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bounded_work.h"
#include "base/check.h"
#include "chat/chat_format.h"
#include "chat/template_case.h"

namespace {

const std::vector<quire::ResponseTemplate>& forms() {
  static const std::vector<quire::ResponseTemplate> all = [] {
    std::vector<quire::ResponseTemplate> made;
    for (const quire::TemplateCase& one : quire::kTemplateCases)
      made.push_back(quire::find_traits(quire::ChatTemplate(one.source(), {"<s>", "</s>", {}})).response);
    made.emplace_back().channels = true;
    return made;
  }();
  return all;
}

quire::WholeOutput read(const quire::ResponseTemplate& form, std::string_view text, size_t piece) {
  quire::ResponseParser parser(form, {});
  quire::OutputEvents events;
  for (size_t at = 0; at < text.size(); at += piece) parser.push(text.substr(at, piece), events);
  parser.finish(events);
  quire::WholeOutput output;
  for (const quire::OutputEvent& event : events) output.add(event);
  return output;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto& all = forms();
  if (size < 2) return 0;
  const quire::BoundedWork work(size);
  const quire::ResponseTemplate& form = all[data[0] % all.size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const quire::WholeOutput whole = read(form, text, SIZE_MAX / 2),
                           pieces = read(form, text, 1 + data[1] % 16);
  CHECK(whole.text == pieces.text && whole.reasoning == pieces.reasoning && whole.calls == pieces.calls);
  return 0;
}
