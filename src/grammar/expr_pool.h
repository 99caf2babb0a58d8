#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/byte_set.h"

namespace quire::grammar {

using ExprId = uint32_t;  // equal languages may have several; equal ids are equal languages

// Decimal numbers that are a multiple of modulus / 10^scale, of which some digits have been read. An automaton of its own, because
// as an expression it would have as many parts as there are remainders.
struct Multiples {
  uint64_t modulus = 1;    // at most kMostModulus
  uint64_t remainder = 0;  // of the digits so far
  int32_t scale = 0;       // digits after the point that may be other than 0
  int32_t left = -1;       // of those: how many may still come; -1: the point has not been read
  static constexpr uint64_t kMostModulus = uint64_t(1) << 56;
  bool operator==(const Multiples&) const = default;
};

// Regular languages over bytes, as expressions with intersection and complement, and the automata they are: an expression is a
// state, its derivative by a byte the next one, made when it is asked for. Equal expressions are one. Grows as it is used, up to a
// bound, past which it throws Error. One thread.
class ExprPool {
 public:
  static constexpr ExprId kNothing = 0;  // no text at all
  static constexpr ExprId kEmpty = 1;    // the empty text
  static constexpr ExprId kAll = 2;      // any bytes
  static constexpr uint32_t kNoMost = ~uint32_t(0);
  static constexpr size_t kMostBytes = size_t(64) << 20;

  ExprPool();

  ExprId bytes(const ByteSet& set);
  ExprId literal(std::string_view text);
  ExprId literals(std::vector<std::string> texts);  // any of them, as a tree of their bytes
  ExprId concat(ExprId a, ExprId b);
  ExprId concat(std::span<const ExprId> parts);
  ExprId any_of(std::vector<ExprId> parts);
  ExprId all_of(std::vector<ExprId> parts);
  ExprId complement(ExprId a);
  ExprId repeat(ExprId a, uint32_t least, uint32_t most);  // most: kNoMost: without end
  ExprId optional(ExprId a) { return repeat(a, 0, 1); }
  ExprId multiples(const Multiples& numbers);

  bool nullable(ExprId a) const { return nodes_[a].nullable; }
  // Whether any text belongs to it. What would take too long to find out counts as nothing.
  bool is_live(ExprId a);
  // What may follow `byte`; kNothing if nothing may, not even the empty text.
  ExprId next(ExprId a, uint8_t byte);
  // Whether anything but the empty text belongs to it.
  bool can_continue(ExprId a);
  // The bytes that lead where `byte` does.
  ByteSet alike(ExprId a, uint8_t byte);
  bool matches(ExprId a, std::string_view text);
  // How many plain characters it begins with, in any order, at the most: kNoMost: without end. Nothing where that cannot be seen at
  // once. Plain are those that may stand in a JSON string as they are: no quote, backslash or control character.
  std::optional<uint32_t> plain_run(ExprId a);
  size_t size(ExprId a) const { return nodes_[a].size; }  // of its tree, up to a bound
  size_t used_bytes() const { return used_bytes_; }

 private:
  enum class Kind : uint8_t { nothing, empty, bytes, concat, any_of, all_of, complement, repeat, multiples };
  enum class Answer : uint8_t { unknown, yes, no };
  struct Node {
    Kind kind = Kind::nothing;
    bool nullable = false;
    bool may_be_nothing = false;  // it takes a search to know whether any text belongs to it
    bool finite = false;          // so many texts belong to it for certain; false: perhaps
    Answer live = Answer::unknown, continues = Answer::unknown;
    uint16_t reach = 1;  // how deep its derivative looks
    uint32_t size = 1;
    uint32_t least = 0, most = 0;
    std::vector<ExprId> parts = {};
    ByteSet set = {};
    Multiples numbers = {};
  };
  // What is certain of the texts of plain characters: of all there are, not of those that belong to an expression.
  struct PlainTexts {
    bool some = false;          // one of them belongs to it
    bool all_but_few = false;   // all do, but for a finite number
    bool always_more = false;   // each is the beginning of infinitely many that do
    bool always_a_way = false;  // each is the beginning of a text that does, plain or not
    // Of what allows all that this allows or all that the other does.
    PlainTexts operator|(const PlainTexts& other) const;
  };
  // An expression that begins with one of a set of bytes, and goes on in one way: it needs no table of derivatives.
  struct FirstByte {
    ByteSet set;
    ExprId after = kNothing;
  };
  // An expression's derivatives: by classes of bytes that lead to the same.
  struct Steps {
    std::array<uint8_t, 256> class_of{};
    std::vector<ExprId> to;
    std::vector<ByteSet> bytes;  // by class, as the next before
  };

  ExprId intern(Node node);
  void charge(size_t bytes);
  bool is_finite(const Node& node) const;
  std::optional<FirstByte> first_byte(ExprId a) const;
  std::vector<ExprId> followers(ExprId a);
  const Steps& steps(ExprId a);
  Steps make_steps(ExprId a);
  ExprId derive(ExprId a, uint8_t byte);
  void refine_by(ExprId part, Steps& steps);
  bool covers_plain(ExprId a);
  bool begins_plain(ExprId a);
  PlainTexts plain_texts(ExprId a);
  PlainTexts find_plain_texts(const Node& node);
  const Multiples* multiples_in(ExprId a, int depth) const;
  bool has_near_multiple(ExprId a);
  static uint64_t hash_of(const Node& node);
  static bool same(const Node& a, const Node& b);

  std::vector<Node> nodes_;
  std::unordered_multimap<uint64_t, ExprId> by_hash_;
  std::vector<std::unique_ptr<const Steps>> steps_;
  std::unordered_map<ExprId, bool> covers_plain_, begins_plain_;
  std::unordered_map<ExprId, PlainTexts> plain_texts_;
  size_t used_bytes_ = 0;
};

}  // namespace quire::grammar
