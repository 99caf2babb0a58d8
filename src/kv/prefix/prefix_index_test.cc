#include "kv/prefix/prefix_index.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using Tokens = std::vector<TokenId>;
constexpr PrefixNodeId kRoot = PrefixIndex::kRoot;

PrefixIndex make_index() {
  return PrefixIndex(1, 4, 99);
}

TEST(PrefixIndex, FindsAPageOnlyAfterTheTokensBeforeIt) {
  PrefixIndex index = make_index();
  const PrefixNodeId first = index.add(kRoot, Tokens{1, 2, 3, 4});
  const PrefixNodeId second = index.add(first, Tokens{5, 6, 7, 8});
  for (const PrefixNodeId id : {first, second}) index.node(id).pages[0] = PageId{id.value};
  EXPECT_EQ(index.child(kRoot, Tokens{1, 2, 3, 4}), first);
  EXPECT_EQ(index.child(first, Tokens{5, 6, 7, 8}), second);
  EXPECT_FALSE(index.child(kRoot, Tokens{5, 6, 7, 8}));
  EXPECT_FALSE(index.child(first, Tokens{5, 6, 7, 9}));
  EXPECT_EQ(index.node(second).depth, 1u);
  EXPECT_EQ(index.size(), 2u);
  index.check_invariants();
}

TEST(PrefixIndex, FindsTheChildThatAgreesLongest) {
  PrefixIndex index = make_index();
  const PrefixNodeId two = index.add(kRoot, Tokens{1, 2, 8, 8});
  const PrefixNodeId three = index.add(kRoot, Tokens{1, 2, 3, 8});
  const PrefixNodeId part = index.add(kRoot, Tokens{9, 9});
  for (const PrefixNodeId id : {two, three, part}) index.node(id).pages[0] = PageId{id.value};
  const PrefixIndex::Longest longest = index.longest_child(kRoot, Tokens{1, 2, 3, 4});
  EXPECT_EQ(longest.node, three);
  EXPECT_EQ(longest.tokens, 3u);
  EXPECT_EQ(index.longest_child(kRoot, Tokens{9, 9, 9}).tokens, 2u);
  EXPECT_EQ(index.longest_child(kRoot, Tokens{7}).tokens, 0u);
  index.check_invariants();
}

TEST(PrefixIndex, KeepsSaltsApartAndForgetsARootWithItsLastNode) {
  PrefixIndex index = make_index();
  const CacheSalt ann{.key = 1}, bob{.key = 2};
  EXPECT_FALSE(index.root(ann));
  const PrefixNodeId root = index.root_or_add(ann);
  EXPECT_TRUE(index.is_root(root));
  const PrefixNodeId hers = index.add(root, Tokens{1, 2, 3, 4});
  index.node(hers).pages[0] = PageId{0};
  EXPECT_EQ(index.root(ann), root);
  EXPECT_FALSE(index.root(bob));
  EXPECT_FALSE(index.child(kRoot, Tokens{1, 2, 3, 4})) << "what has no salt does not find it";
  EXPECT_NE(index.root_hash(ann), index.root_hash(bob));
  EXPECT_EQ(index.roots().size(), 2u);
  index.check_invariants();
  index.node(hers).pages[0].reset();
  index.prune(hers);
  EXPECT_FALSE(index.root(ann)) << "salts from outside do not pile up";
  EXPECT_EQ(index.size(), 0u);
  index.check_invariants();
}

TEST(PrefixIndex, ForgetsANodeOnceItHasNoPageNoChildAndNoHolder) {
  PrefixIndex index = make_index();
  const PrefixNodeId parent = index.add(kRoot, Tokens{1, 2, 3, 4});
  const PrefixNodeId child = index.add(parent, Tokens{5, 6, 7, 8});
  index.node(child).pages[0] = PageId{1};
  index.prune(parent);
  EXPECT_EQ(index.size(), 2u) << "its child is still needed";
  index.hold(child);
  index.node(child).pages[0].reset();
  index.prune(child);
  EXPECT_EQ(index.size(), 2u) << "somebody will add to it";
  index.drop(child);
  EXPECT_EQ(index.size(), 0u) << "and those above it go with it";
  EXPECT_FALSE(index.child(kRoot, Tokens{1, 2, 3, 4}));
  index.check_invariants();
}

TEST(PrefixIndex, RemembersWhatWasEvicted) {
  PrefixIndex index = make_index();
  const PrefixNodeId node = index.add(kRoot, Tokens{1, 2, 3, 4});
  const Clock::time_point now = Clock::now();
  const uint64_t before = index.root_hash({});
  EXPECT_FALSE(index.evicted_at(before, Tokens{1, 2, 3, 4}));
  index.remember_evicted(node, now);
  EXPECT_EQ(index.evicted_at(before, Tokens{1, 2, 3, 4}), now);
  EXPECT_FALSE(index.evicted_at(before, Tokens{1, 2, 3, 5}));
}

TEST(PrefixIndex, ForgetsEverythingAtOnce) {
  PrefixIndex index = make_index();
  const PrefixNodeId node = index.add(index.root_or_add({.key = 3}), Tokens{1, 2, 3, 4});
  index.node(node).pages[0] = PageId{0};
  index.forget_all();
  EXPECT_EQ(index.size(), 0u);
  EXPECT_FALSE(index.root({.key = 3}));
  const PrefixNodeId again = index.add(kRoot, Tokens{1, 2, 3, 4});
  index.node(again).pages[0] = PageId{0};
  EXPECT_EQ(index.child(kRoot, Tokens{1, 2, 3, 4}), again);
  index.check_invariants();
}

}  // namespace
}  // namespace quire
