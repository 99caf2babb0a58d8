#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quire::grammar {

// Where the references of a schema document lead: JSON pointers, anchors and ids inside it. Nothing is fetched. It refers to the
// document.
class SchemaPlaces {
 public:
  explicit SchemaPlaces(const OrderedJson& document);

  // Of a reference that stands in `from`; null if it leads out of the document.
  const OrderedJson* find(const std::string& reference, const OrderedJson& from) const;
  // Whether it says to be of draft 7 or older.
  bool is_old() const { return is_old_; }

 private:
  void visit(const OrderedJson& json, const std::string& base, bool is_schema);
  static std::string join(const std::string& base, const std::string& reference);
  static const OrderedJson* follow(const OrderedJson& from, std::string_view pointer);

  std::map<std::string, const OrderedJson*> by_uri_;   // without a fragment, or with an anchor
  std::map<const OrderedJson*, std::string> base_of_;  // of objects
  bool is_old_ = false;
};

}  // namespace quire::grammar
