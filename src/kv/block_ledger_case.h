#pragma once

#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kv/prefix/block_news.h"

namespace quire {

// For tests: believes what it is told of blocks, and that nothing is told that cannot be.
class BlockLedger : public BlockListener {
 public:
  void stored(const StoredBlock& block) noexcept override {
    EXPECT_TRUE(places_[block.place].insert(block.hash).second) << "stored twice";
    Told& told = blocks_[block.hash];
    told = {block.parent, {block.tokens.begin(), block.tokens.end()}};
    ++told_;
  }
  void removed(uint64_t hash, BlockPlace place) noexcept override {
    EXPECT_EQ(places_[place].erase(hash), 1u) << "it was not there";
    ++told_;
  }
  void cleared() noexcept override {
    places_.clear();
    ++cleared_;
  }

  const std::set<uint64_t>& at(BlockPlace place) { return places_[place]; }
  // All tokens up to the block's end. REQUIRES: it and those before it were told.
  std::vector<TokenId> prefix(uint64_t hash) const {
    const Told& told = blocks_.at(hash);
    std::vector<TokenId> tokens = told.parent ? prefix(*told.parent) : std::vector<TokenId>();
    tokens.insert(tokens.end(), told.tokens.begin(), told.tokens.end());
    return tokens;
  }
  std::set<std::vector<TokenId>> prefixes(BlockPlace place) {
    std::set<std::vector<TokenId>> all;
    for (const uint64_t hash : at(place)) all.insert(prefix(hash));
    return all;
  }
  uint32_t told() const { return told_; }
  uint32_t cleared_times() const { return cleared_; }

 private:
  struct Told {
    std::optional<uint64_t> parent;
    std::vector<TokenId> tokens;
  };
  std::map<uint64_t, Told> blocks_;
  std::map<BlockPlace, std::set<uint64_t>> places_;
  uint32_t told_ = 0, cleared_ = 0;
};

}  // namespace quire
