#include "grammar/schema_choices.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace quire::grammar {
namespace {

constexpr size_t kMostSteps = 200'000, kMostAlternatives = 5'000;
constexpr int kMostFacts = 30;

bool have_common_value(const std::vector<OrderedJson>& a, const std::vector<OrderedJson>& b) {
  return std::ranges::any_of(a, [&](const OrderedJson& x) {
    return std::ranges::any_of(b, [&](const OrderedJson& y) { return is_same_value(x, y); });
  });
}

}  // namespace

struct SchemaChoices::Open {
  Goal pending;  // not looked at yet
  std::set<const Schema*> held;
  Goal in_order;            // the same, as they came
  std::vector<Goal> lists;  // to choose from
  JsonTypes types = kAnyType;
};

std::vector<Goal> SchemaChoices::alternatives(const Goal& goal) {
  std::vector<Goal> found;
  Open open;
  open.pending = Goal(goal.rbegin(), goal.rend());
  expand(std::move(open), found);
  return found;
}

void SchemaChoices::expand(Open open, std::vector<Goal>& found) {
  while (!open.pending.empty()) {
    const Schema* schema = open.pending.back();
    open.pending.pop_back();
    if (schema == nullptr || !open.held.insert(schema).second) continue;
    if (++steps_ > kMostSteps) throw Error("the schema is too complex: it combines too many alternatives");
    open.types &= schema->types;
    if (schema->never || open.types == 0) return;
    open.in_order.push_back(schema);
    open.pending.insert(open.pending.end(), schema->all.rbegin(), schema->all.rend());
    const std::vector<Goal>& lists = choices_of(schema);
    open.lists.insert(open.lists.end(), lists.begin(), lists.end());
  }
  if (open.lists.empty()) {
    if (found.size() >= kMostAlternatives)
      throw Error("the schema is too complex: it combines too many alternatives");
    found.push_back(std::move(open.in_order));
    return;
  }
  // What holds already chooses itself.
  const Goal list = std::move(open.lists.back());
  open.lists.pop_back();
  for (const Schema* one : list) {
    steps_ += 1 + open.in_order.size() / 16;
    Open next = open;
    next.pending.push_back(one);
    expand(std::move(next), found);
  }
}

const std::vector<Goal>& SchemaChoices::choices_of(const Schema* schema) {
  const auto found = choices_.find(schema);
  if (found != choices_.end()) return found->second;
  return choices_.emplace(schema, make_choices(*schema)).first->second;
}

const Schema* SchemaChoices::none_of(std::vector<const Schema*> schemas) {
  if (steps_ += 1 + schemas.size(); steps_ > kMostSteps)
    throw Error("the schema is too complex: it combines too many alternatives");
  Schema* made = store_.make();
  made->none = std::move(schemas);
  return made;
}

std::vector<Goal> SchemaChoices::make_choices(const Schema& schema) {
  std::vector<Goal> lists = schema.any;
  for (const auto& list : schema.one) {
    Goal exactly_one;
    for (const Schema* one : list) {
      std::vector<const Schema*> others;
      for (const Schema* other : list) {
        if (&other != &one && other != one && !are_apart(one, other)) others.push_back(other);
      }
      if (std::ranges::count(list, one) > 1) continue;  // then two of them hold, or none
      Schema* made = store_.make();
      made->all = {one};
      if (!others.empty()) made->all.push_back(none_of(std::move(others)));
      exactly_one.push_back(made);
    }
    lists.push_back(std::move(exactly_one));
  }
  for (const Schema* none : schema.none) lists.push_back(negation(none));
  if (schema.condition != nullptr) {
    Schema* yes = store_.make();
    yes->all = {schema.condition, schema.then_holds};
    Schema* no = store_.make();
    no->all = {none_of({schema.condition}), schema.else_holds};
    lists.push_back({yes, no});
  }
  for (const auto& [name, needed] : schema.dependent_schemas) {
    Schema* without = store_.make();
    Schema* never = store_.make();
    never->never = true;
    without->properties = {{name, never}};
    Schema* with = store_.make();
    with->types = kObject;
    with->required = {name};
    with->all = {needed};
    lists.push_back({without, with});
  }
  return lists;
}

JsonTypes SchemaChoices::types_of(const Schema* schema, int depth) {
  if (schema == nullptr || depth > kMostFacts) return kAnyType;
  if (schema->never) return 0;
  JsonTypes types = schema->types;
  if (schema->allowed) {
    JsonTypes listed = 0;
    for (const OrderedJson& value : *schema->allowed) listed |= type_of(value);
    types &= listed;
  }
  for (const Schema* one : schema->all) types &= types_of(one, depth + 1);
  if (depth > 6) return types;
  for (const auto* lists : {&schema->any, &schema->one}) {
    for (const auto& list : *lists) {
      JsonTypes some = 0;
      for (const Schema* one : list) some |= types_of(one, depth + 1);
      types &= some;
    }
  }
  return types;
}

void SchemaChoices::add_facts(const Schema* schema, Goal& facts, int depth) {
  if (schema == nullptr || depth > kMostFacts || facts.size() > kMostFacts) return;
  facts.push_back(schema);
  for (const Schema* one : schema->all) add_facts(one, facts, depth + 1);
}

bool SchemaChoices::are_apart(const Schema* a, const Schema* b) {
  if (++depth_ > 8) {
    --depth_;
    return false;
  }
  bool apart = (types_of(a) & types_of(b)) == 0;
  Goal of_a, of_b;
  add_facts(a, of_a, 0);
  add_facts(b, of_b, 0);
  const bool are_objects = types_of(a) == kObject || types_of(b) == kObject;
  for (const Schema* x : of_a) {
    for (const Schema* y : of_b) {
      if (apart) break;
      if (x->allowed && y->allowed && !have_common_value(*x->allowed, *y->allowed)) apart = true;
      if (!are_objects) continue;
      // A property that one of them requires and that cannot be what both say of it.
      for (const auto& [name, of_x] : x->properties) {
        const Schema* of_y = apart ? nullptr : y->property(name);
        const auto requires_it = [&name = name](const Schema* one) {
          return std::ranges::find(one->required, name) != one->required.end();
        };
        if (of_y != nullptr &&
            (std::ranges::any_of(of_a, requires_it) || std::ranges::any_of(of_b, requires_it)))
          apart = are_apart(of_x, of_y);
      }
      const auto forbids = [](const Schema* closed, const Schema* needs) {
        if (closed->additional == nullptr || !closed->additional->never ||
            !closed->pattern_properties.empty())
          return false;
        return std::ranges::any_of(
            needs->required, [&](const std::string& name) { return closed->property(name) == nullptr; });
      };
      apart = apart || forbids(x, y) || forbids(y, x);
    }
  }
  --depth_;
  return apart;
}

}  // namespace quire::grammar
