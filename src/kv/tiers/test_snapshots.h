#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "kv/host_kv.h"
#include "kv/tiers/kv_snapshot.h"

namespace quire {

using Tokens = std::vector<TokenId>;

// A cache whose pages have random bytes: whoever finds a page by its tokens can tell whether it is the right one.
class SnapshotTest : public testing::Test {
 protected:
  SnapshotTest() { std::filesystem::create_directories(folder_); }
  ~SnapshotTest() override { std::filesystem::remove_all(folder_); }

  static constexpr uint32_t kTokens = 4;  // of a page
  static KvLayerShape layer(KvFormat key, KvFormat value, uint32_t window = 0) {
    return {.kv_heads = 2,
            .key_dim = 4,
            .value_dim = 2,
            .window = window,
            .key_format = key,
            .value_format = value};
  }
  static KvLayerShape layer(KvFormat format, uint32_t window = 0) { return layer(format, format, window); }
  static std::unique_ptr<HostKv> make(const std::vector<KvLayerShape>& layers, uint32_t pages = 64,
                                      const KvCacheOptions& options = {}) {
    const KvLayout layout = make_kv_layout(layers, kTokens);
    const std::vector<uint32_t> counts(layout.groups.size(), pages);
    return std::make_unique<HostKv>(layout, counts, options);
  }
  static KvIdentity identity() {
    return {.model_name = "fox", .model = "f00d", .positions = "ab", .kernels = "scalar"};
  }

  static Tokens counted(uint32_t n, uint32_t from = 0) {
    Tokens tokens(n);
    std::iota(tokens.begin(), tokens.end(), from);
    return tokens;
  }
  // One sequence from its beginning to its end: new pages get random bytes.
  void compute(HostKv& kv, const Tokens& tokens, CacheSalt salt = {}) {
    PageTable table = kv.make_table(SequenceId{++sequences_}, salt);
    const uint32_t found = kv.attach(table, tokens).tokens;
    ASSERT_TRUE(kv.reserve(table, uint32_t(tokens.size())));
    KvTables flat;
    const PageTable* tables[] = {&table};
    const auto views = kv.view(tables, flat);
    for (uint32_t g = 0; g < views.size(); ++g) {
      for (uint32_t i = (found + kTokens - 1) / kTokens; i < table.pages(g).size(); ++i) {
        for (size_t b = 0; b < views[g].layout->page_bytes; ++b)
          views[g].page(0, i)[b] = std::byte(random_());
      }
    }
    kv.publish(table, tokens, uint32_t(tokens.size()));
    kv.release_behind_window(table, uint32_t(tokens.size()));
    kv.release(table, tokens, uint32_t(tokens.size()), KvCache::Reason::finished);
  }

  // Every page that can be found: all tokens up to its end, and its layer group -> its bytes.
  using Pages = std::map<std::pair<Tokens, size_t>, std::vector<std::byte>>;
  static Pages pages_of(const std::vector<KvNode>& nodes) {
    Pages pages;
    std::vector<Tokens> whole;
    for (const KvNode& node : nodes) {
      whole.push_back(node.parent == KvNode::kNoParent ? Tokens() : whole.at(node.parent));
      whole.back().insert(whole.back().end(), node.tokens.begin(), node.tokens.end());
      for (size_t g = 0; g < node.pages.size(); ++g) {
        if (!node.pages[g].empty()) pages[{whole.back(), g}] = node.pages[g];
      }
    }
    return pages;
  }
  static std::vector<KvNode> nodes_of(HostKv& kv) {
    KvExport all(kv);
    return all.take(SIZE_MAX, kv.make_moves());
  }
  static Pages pages_of(HostKv& kv) { return pages_of(nodes_of(kv)); }

  std::string path(const std::string& name = "kept") const { return folder_ + "/" + name; }
  SnapshotFigures save(HostKv& kv, const std::string& to, const KvIdentity& whose = identity()) const {
    KvExport all(kv);
    return save_snapshot(to, whose, kv.layout(), [&] { return all.take(100, kv.make_moves()); });
  }
  static std::vector<std::byte> bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }
  static SnapshotBytes in_memory(std::span<const std::byte> bytes) {
    return {"memory", bytes.size(), [bytes](uint64_t offset, std::span<std::byte> into) {
              std::memcpy(into.data(), bytes.subspan(offset, into.size()).data(), into.size());
            }};
  }
  // What it is refused with; nothing if it is not.
  template <class... Args>
  static std::string refusal(HostKv& kv, Args&&... args) {
    try {
      restore_snapshot(kv, kv.make_moves(), std::forward<Args>(args)...);
    } catch (const Error& error) {
      kv.check_invariants();
      return error.what();
    }
    return "";
  }

  std::mt19937 random_{7};
  uint32_t sequences_ = 0;
  std::string folder_ = testing::TempDir() + "/quire_snapshot_" + std::to_string(::getpid());
};

}  // namespace quire
