#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/error.h"
#include "grammar/schema_compiler.h"

namespace quire::grammar {
namespace {

constexpr size_t kMostObjectStates = 100'000, kMostPatterns = 5, kMostDependencies = 60;
constexpr uint64_t kMostCountedMembers = 64;
constexpr uint32_t kMostClasses = 6;
constexpr int kMostNameDepth = 20;

}  // namespace

// What the members of an object may be.
struct SchemaCompiler::ObjectPlan {
  struct Member {
    std::string name;
    Goal goal;
    bool required = false;
    bool forbidden = false;  // by what names may be
    int tracked = -1;        // its bit, if others depend on whether it is there
  };
  struct Others {
    ExprId names = ExprPool::kNothing;  // between the quotes
    Goal goal;
  };
  std::vector<Member> members;  // in their order
  std::vector<Others> others;
  uint64_t least = 0, most = Schema::kNoMost;
  std::vector<std::pair<uint64_t, uint64_t>> dependent;  // where the first bit is, all of these must be
};

// Where in an object: which member comes next at the earliest, and what is known of those before.
struct SchemaCompiler::ObjectState {
  enum class Where : uint8_t { opened, after_member, after_comma };
  size_t next = 0;
  Where where = Where::opened;
  uint64_t counted = 0;  // different members for certain, up to the least number
  uint64_t members = 0;  // all, if there is a largest number
  uint64_t others = 0;   // of those counted: which classes of names, or how many
  uint64_t present = 0;  // bits of tracked members
  auto operator<=>(const ObjectState&) const = default;
};

Goal SchemaCompiler::goal_of_member(const Goal& leaves, const std::string& name) {
  Goal goal;
  for (const Schema* leaf : leaves) {
    bool is_known = false;
    for (const auto& [key, schema] : leaf->properties) {
      if (key != name) continue;
      goal.push_back(schema);
      is_known = true;
    }
    for (const auto& [pattern, schema] : leaf->pattern_properties) {
      if (!values_.matches(pattern, name)) continue;
      goal.push_back(schema);
      is_known = true;
    }
    if (!is_known && leaf->additional != nullptr) goal.push_back(leaf->additional);
  }
  return goal;
}

ExprId SchemaCompiler::names_of(const Schema* names, int depth) {
  if (depth > kMostNameDepth) throw Error("the schema's keyword 'propertyNames' is nested too deeply");
  if (const auto values = listed({names})) {
    std::vector<std::string> texts;
    for (const OrderedJson& value : *values) {
      if (value.is_string()) texts.push_back(values_.content(value.get_ref<const std::string&>()));
    }
    return pool_.literals(std::move(texts));
  }
  std::vector<ExprId> parts;
  for (const Goal& leaves : choices_.alternatives({names})) {
    JsonTypes types = kAnyType;
    std::vector<ExprId> limits;
    for (const Schema* leaf : leaves) {
      types &= leaf->types;
      if (!leaf->allowed) continue;
      std::vector<std::string> texts;
      for (const OrderedJson& value : *leaf->allowed) {
        if (value.is_string()) texts.push_back(values_.content(value.get_ref<const std::string&>()));
      }
      limits.push_back(pool_.literals(std::move(texts)));
    }
    if ((types & kString) == 0) continue;
    limits.push_back(values_.plain_content(leaves));
    parts.push_back(pool_.all_of(std::move(limits)));
  }
  return pool_.any_of(std::move(parts));
}

SchemaCompiler::ObjectPlan SchemaCompiler::plan_object(const Goal& leaves) {
  ObjectPlan plan;
  std::vector<std::string> order;
  std::set<std::string> known;
  const auto add = [&](const std::string& name) {
    if (known.insert(name).second) order.push_back(name);
  };
  std::set<std::string> required;
  for (const Schema* leaf : leaves) {
    for (const auto& [name, schema] : leaf->properties) add(name);
  }
  for (const Schema* leaf : leaves) {
    for (const std::string& name : leaf->required) {
      add(name);
      required.insert(name);
    }
    for (const auto& [name, needed] : leaf->dependent_required) {
      add(name);
      for (const std::string& other : needed) add(other);
    }
    plan.least = std::max(plan.least, leaf->least_properties);
    plan.most = std::min(plan.most, leaf->most_properties);
  }
  std::map<std::string, size_t> place;
  for (const std::string& name : order) {
    place.emplace(name, plan.members.size());
    plan.members.push_back(
        {.name = name, .goal = goal_of_member(leaves, name), .required = required.contains(name)});
    for (const Schema* leaf : leaves) {
      if (leaf->names != nullptr && !validator_.holds(leaf->names, OrderedJson(name)))
        plan.members.back().forbidden = true;
    }
  }
  int tracked = 0;
  const auto bit = [&](const std::string& name) {
    ObjectPlan::Member& member = plan.members[place.at(name)];
    if (member.tracked < 0) member.tracked = tracked++;
    if (size_t(tracked) > kMostDependencies)
      throw Error("the schema's keyword 'dependentRequired' names too many members");
    return uint64_t(1) << member.tracked;
  };
  for (const Schema* leaf : leaves) {
    for (const auto& [name, needed] : leaf->dependent_required) {
      uint64_t all = 0;
      for (const std::string& other : needed) all |= bit(other);
      plan.dependent.emplace_back(bit(name), all);
    }
  }
  plan_other_members(leaves, plan);
  return plan;
}

void SchemaCompiler::plan_other_members(const Goal& leaves, ObjectPlan& plan) {
  std::vector<std::string> patterns;
  std::vector<ExprId> limits;
  for (const Schema* leaf : leaves) {
    for (const auto& [pattern, schema] : leaf->pattern_properties) {
      if (std::ranges::find(patterns, pattern) == patterns.end()) patterns.push_back(pattern);
    }
    if (leaf->names != nullptr) limits.push_back(names_of(leaf->names, 0));
  }
  if (patterns.size() > kMostPatterns)
    throw Error("the schema's keyword 'patternProperties' has more than {} patterns for one object",
                kMostPatterns);
  std::vector<std::string> named;
  for (const ObjectPlan::Member& member : plan.members) named.push_back(values_.content(member.name));
  if (!named.empty()) limits.push_back(pool_.complement(pool_.literals(std::move(named))));
  const bool is_free = limits.empty() && patterns.empty();
  // What is a name by a pattern or by `propertyNames` need not be asked to be a text.
  const bool are_texts =
      std::ranges::any_of(leaves, [](const Schema* leaf) { return leaf->names != nullptr; });
  const ExprId any_name = values_.any_content(is_free ? values_.free_spelling() : JsonSpelling::one);
  for (uint32_t matched = 0; matched < 1u << patterns.size(); ++matched) {
    std::vector<ExprId> parts = limits;
    if (!are_texts && matched == 0) parts.push_back(any_name);
    for (size_t p = 0; p < patterns.size(); ++p) {
      const ExprId content = values_.pattern_content(patterns[p]);
      parts.push_back((matched >> p & 1) != 0 ? content : pool_.complement(content));
    }
    ObjectPlan::Others others{pool_.all_of(std::move(parts)), {}};
    for (const Schema* leaf : leaves) {
      bool is_known = false;
      for (const auto& [pattern, schema] : leaf->pattern_properties) {
        const size_t p = size_t(std::ranges::find(patterns, pattern) - patterns.begin());
        if ((matched >> p & 1) == 0) continue;
        others.goal.push_back(schema);
        is_known = true;
      }
      if (!is_known && leaf->additional != nullptr) others.goal.push_back(leaf->additional);
    }
    const bool is_never =
        std::ranges::any_of(others.goal, [](const Schema* one) { return one != nullptr && one->never; });
    if (!is_never && pool_.is_live(others.names)) plan.others.push_back(std::move(others));
  }
}

// What others may be called without quotes.
ExprId SchemaCompiler::bare_names() {
  ByteSet set = ByteSet::of('a', 'z');
  for (const auto& [first, last] : {std::pair('A', 'Z'), std::pair('0', '9'), std::pair('_', '_')}) {
    for (char c = first; c <= last; ++c) set.add(uint8_t(c));
  }
  return pool_.repeat(pool_.bytes(set), 1, 64);
}

ObjectSyntax SchemaCompiler::usual_object(std::function<Symbol(const Goal&, const std::string&)> value) {
  const ExprId end = pool_.literal("}"), colon = join({space_, pool_.literal(":"), space_});
  const ExprId quote = pool_.literal(syntax_.quote);
  const bool bare = syntax_.bare_names;
  return {.open = join({pool_.literal("{"), space_}),
          .close = end,
          .comma = comma(),
          .close_after_member = join({space_, end}),
          .name_open = bare ? ExprPool::kEmpty : quote,
          .name_close = bare ? colon : join({quote, colon}),
          .bare_names = bare,
          .may_quote = bare,
          .value = std::move(value),
          .value_close = {}};
}

Symbol SchemaCompiler::object(const Goal& leaves, const ObjectSyntax& syntax) {
  ObjectPlan plan = plan_object(leaves);
  for (ObjectPlan::Others& others : plan.others) {
    if (syntax.bare_names) others.names = pool_.all_of({others.names, bare_names()});
    if (!syntax_.never.empty()) others.names = pool_.all_of({others.names, allowed_});
  }
  if (plan.least > kMostCountedMembers && plan.least > plan.members.size())
    throw Error("the schema's keyword 'minProperties' cannot be more than {}", kMostCountedMembers);
  const uint64_t largest = plan.most == Schema::kNoMost ? 0 : plan.most;
  std::map<ObjectState, Symbol> known;
  std::vector<ObjectState> to_do;
  const auto symbol_at = [&](const ObjectState& state) {
    const auto [found, is_new] = known.emplace(state, Symbol{});
    if (is_new) {
      if (known.size() > kMostObjectStates)
        throw Error(
            "the schema's keywords 'minProperties', 'maxProperties' and 'dependentRequired' are too much to "
            "count");
      found->second = rules_.add_rule();
      to_do.push_back(state);
    }
    return found->second;
  };
  const auto counted = [&](ObjectState state) {
    state.where = ObjectState::Where::after_member;
    state.counted = std::min(state.counted + 1, plan.least);
    if (largest > 0) ++state.members;
    return state;
  };
  const auto is_whole = [&](const ObjectState& state) {
    return std::ranges::all_of(plan.dependent, [&](const auto& one) {
      return (state.present & one.first) == 0 || (state.present & one.second) == one.second;
    });
  };
  const auto may_end = [&](const ObjectState& state) {
    const auto rest = std::span(plan.members).subspan(state.next);
    return state.counted >= plan.least && is_whole(state) &&
           std::ranges::none_of(rest, &ObjectPlan::Member::required);
  };
  // A member, from its name on.
  const auto member_of = [&](ExprId name, const Goal& goal, const std::string& known_name,
                             const ObjectState& after) {
    const ExprId key = join({syntax.name_open, name, syntax.name_close});
    const Symbol close =
        Symbol::terminal(syntax.value_close ? syntax.value_close(known_name) : ExprPool::kEmpty);
    return std::array{Symbol::terminal(key), syntax.value(goal, known_name), close, symbol_at(after)};
  };
  const auto written = [&](const std::string& name) {
    const std::string content = values_.content(name);
    if (!syntax.bare_names)
      return pool_.matches(allowed_, content) ? pool_.literal(content) : ExprPool::kNothing;
    return is_bare_name(name) ? pool_.literal(name) : syntax.may_quote ? text_of(name) : ExprPool::kNothing;
  };
  const Symbol first = symbol_at({});
  while (!to_do.empty()) {
    const ObjectState state = to_do.back();
    to_do.pop_back();
    const Symbol symbol = known.at(state);
    if (state.where == ObjectState::Where::after_member) {
      // One comma for whatever may follow: names are many.
      ObjectState after = state;
      after.where = ObjectState::Where::after_comma;
      rules_.add(symbol, {Symbol::terminal(syntax.comma), symbol_at(after)});
      if (may_end(state)) rules_.add(symbol, {Symbol::terminal(syntax.close_after_member)});
      continue;
    }
    const bool is_full = plan.most == 0 || (largest > 0 && state.members >= largest);
    if (state.next < plan.members.size()) {
      const ObjectPlan::Member& member = plan.members[state.next];
      ObjectState after = state;
      ++after.next;
      if (!member.required) rules_.add(symbol, {symbol_at(after)});
      if (is_full || member.forbidden) continue;
      after = counted(after);
      if (member.tracked >= 0) after.present |= uint64_t(1) << member.tracked;
      const ExprId name = written(member.name);
      if (name == ExprPool::kNothing && member.required)
        throw Error("the parameter '{}' has a name that cannot be written as this model writes calls",
                    member.name);
      if (name != ExprPool::kNothing) rules_.add(symbol, member_of(name, member.goal, member.name, after));
      continue;
    }
    if (!is_whole(state)) continue;  // what is missing cannot come any more
    if (state.where == ObjectState::Where::opened && may_end(state))
      rules_.add(symbol, {Symbol::terminal(syntax.close)});
    if (is_full || !syntax.others) continue;
    for (const ObjectPlan::Others& others : plan.others) {
      const auto add = [&](ExprId names, const ObjectState& after) {
        rules_.add(symbol, member_of(names, others.goal, "", after));
      };
      ObjectState after = counted(state);
      if (state.counted >= plan.least) {
        add(others.names, after);
        continue;
      }
      // The same name may come twice, and then counts once. So names are counted that differ for certain: in their length, modulo
      // as many as could be needed. Few such classes may come in any order, many one after the other.
      const uint32_t needed = uint32_t(plan.least);
      const ExprId one = values_.character(JsonSpelling::one);
      const bool any_order = needed <= kMostClasses;
      for (uint32_t rest = 0; rest < needed; ++rest) {
        if (any_order ? (state.others >> rest & 1) != 0 : state.others != rest) continue;
        ObjectState next = after;
        next.others = any_order ? state.others | uint64_t(1) << rest : rest + 1;
        const ExprId length =
            pool_.concat(pool_.repeat(pool_.repeat(one, needed, needed), 0, ExprPool::kNoMost),
                         pool_.repeat(one, rest, rest));
        add(needed == 1 ? others.names : pool_.all_of({others.names, length}), next);
      }
      if (needed == 1) continue;
      ObjectState uncounted = after;
      uncounted.counted = state.counted;
      add(others.names, uncounted);
    }
  }
  const Symbol whole = rules_.add_rule();
  rules_.add(whole, {Symbol::terminal(syntax.open), first});
  return whole;
}

}  // namespace quire::grammar
