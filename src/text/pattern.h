#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

// A regular expression as Python writes it, where a dot is any character. Bounded in steps and memory, so a stranger may write it.
// Immutable; any thread may use it.
class Pattern {
 public:
  explicit Pattern(const std::string& source);  // throws Error if it cannot be used
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  using Groups = std::vector<std::pair<std::string, std::string>>;  // by name; those that took part
  struct Found {
    size_t begin = 0, end = 0;
    Groups groups = {};
  };
  enum class Match { no, more, yes, too_much };

  // Whether it stands at `at`. `last`: nothing follows the text; else `more` if what follows could decide it, and then no other answer
  // depends on what follows; `too_much` if it takes too long. REQUIRES: `text` is valid UTF-8.
  Match match_at(std::string_view text, size_t at, bool last, Found& found) const;
  // What looking through one text may take, whatever the number of looks: few steps at each of its places, and these at hard ones.
  struct Patience {
    uint64_t steps = 0;
  };
  static Patience patience_for(std::string_view text) { return {.steps = 2'500'000 + 32 * text.size()}; }
  // Where it stands first from `at` on. Throws Error if that takes too long.
  bool find(std::string_view text, size_t at, Found& found, Patience& patience) const;

  // Whether a match may begin with that byte.
  bool may_begin_with(char byte) const { return first_[static_cast<unsigned char>(byte)]; }
  bool may_be_empty() const { return may_be_empty_; }
  const std::vector<std::string>& group_names() const { return names_; }
  // How many characters before a match it looks at.
  size_t looks_back() const { return looks_back_; }

 private:
  struct State;
  void set_groups(std::string_view text, Found& found) const;
  bool stands_at(std::string_view text, size_t at, Found& found, Patience& patience) const;

  std::unique_ptr<const State> state_;
  std::array<bool, 256> first_ = {};
  std::vector<std::string> names_;
  std::vector<uint32_t> numbers_;  // of the groups with names
  size_t looks_back_ = 0;
  bool may_be_empty_ = false;
};

}  // namespace quire
