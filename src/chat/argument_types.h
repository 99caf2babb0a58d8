#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quire {

// What the tools of a conversation are called and which types their arguments have: formats that write arguments as text
// leave it to the schema whether 5 is a number.
class ArgumentTypes {
 public:
  ArgumentTypes() = default;
  // `tools` as OpenAI's API has them; whatever is no tool is left out.
  explicit ArgumentTypes(const OrderedJson& tools);

  bool empty() const { return tools_.empty(); }
  bool knows(const std::string& tool) const { return tools_.contains(tool); }
  // A text as the value that its tool wants. What has the wrong form stays a text.
  OrderedJson value(const std::string& tool, const std::string& key, const std::string& text) const;
  // Texts that stand for something else, where the schema says so: some templates write all values between quotes.
  void fit(const std::string& tool, OrderedJson& arguments) const;
  // All texts as what their types say first, as Transformers does it; those of no known type stay.
  void cast(const std::string& tool, OrderedJson& arguments) const;
  // By argument, in the order of its schema; empty: nothing is known.
  std::map<std::string, std::vector<std::string>> all_of(const std::string& tool) const;
  // Of one.
  std::vector<std::string> types_of(const std::string& tool, const std::string& key) const;

 private:
  std::map<std::string, std::map<std::string, std::vector<std::string>>> tools_;
};

}  // namespace quire
