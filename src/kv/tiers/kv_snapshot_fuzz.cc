// Any bytes are either a snapshot whose nodes a cache takes, or an Error that leaves the cache as it was. The target makes
// its own seeds, because they depend on the format: it writes them to the first folder it is given.
#include <cstring>
#include <filesystem>
#include <fstream>

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "kv/host_kv.h"
#include "kv/tiers/kv_snapshot.h"

namespace {

using namespace quire;

const KvIdentity kIdentity{.model_name = "fuzz", .model = "1", .positions = "2", .kernels = "3"};

KvLayout layout() {
  const KvLayerShape whole{.kv_heads = 1,
                           .key_dim = 2,
                           .value_dim = 2,
                           .window = 0,
                           .key_format = KvFormat::int8,
                           .value_format = KvFormat::int8};
  KvLayerShape window = whole;
  window.window = 3;
  return make_kv_layout(std::vector{whole, window}, 2);
}

const std::string& own_identity() {
  static const std::string text = describe(kIdentity, layout());
  return text;
}

// Changed bytes would all end at the first checksum: the input is a list of parts instead, each with a byte for its
// length, and gets the head and the checksums that it needs.
std::vector<std::byte> with_checksums(std::span<const std::byte> input) {
  const std::string& text = own_identity();
  std::vector<std::byte> file(16 + text.size());
  const uint32_t numbers[] = {kSnapshotVersion, uint32_t(text.size())};
  std::memcpy(file.data(), "quire kv", 8);
  std::memcpy(file.data() + 8, numbers, sizeof(numbers));
  std::memcpy(file.data() + 16, text.data(), text.size());
  uint64_t checksum = 0;
  for (size_t begin = 0;;) {
    checksum = XXH3_64bits_withSeed(file.data() + begin, file.size() - begin, checksum);
    file.resize(file.size() + 8);
    std::memcpy(file.data() + file.size() - 8, &checksum, 8);
    if (input.empty()) return file;
    begin = file.size();
    const size_t length = std::min(size_t(input[0]), input.size() - 1);
    file.insert(file.end(), input.begin() + 1, input.begin() + 1 + ptrdiff_t(length));
    input = input.subspan(1 + length);
  }
}

constexpr uint32_t kPages = 4, kAllPages = 2 * kPages;  // of each group, of both

// Who wants all pages gets them: what was cached is gone.
void empty(HostKv& kv) {
  PageTable table = kv.make_table();
  CHECK(kv.reserve(table, kPages * kv.node_tokens()));
  kv.release(table, {}, 0, KvCache::Reason::forgotten);
  CHECK(kv.stats().free_pages == kAllPages);
}

void restore(std::span<const std::byte> bytes) {
  // One for all inputs: a new cache takes longer than all the rest.
  static const auto cache = std::make_unique<HostKv>(layout(), std::vector<uint32_t>{kPages, kPages});
  HostKv& kv = *cache;
  const auto read = [bytes](uint64_t offset, std::span<std::byte> into) {
    CHECK(offset <= bytes.size() && into.size() <= bytes.size() - offset);
    if (!into.empty()) std::memcpy(into.data(), bytes.data() + offset, into.size());
  };
  try {
    restore_snapshot(kv, kv.make_moves(), kIdentity, {"fuzz", bytes.size(), read});
  } catch (const Error&) {
    CHECK(kv.stats().free_pages == kAllPages);
  }
  CHECK(kv.stats().held_pages == 0);
  kv.check_invariants();
  empty(kv);
}

// ---- seeds -------------------------------------------------------------------------------------------------------

void append(std::vector<std::byte>& out, uint64_t number, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out.push_back(std::byte(number >> 8 * i));
}

KvNode node(uint32_t parent, uint32_t first_token, uint32_t tokens, bool whole, bool window) {
  KvNode made{.parent = parent, .salt = {}, .tokens = {}, .pages = std::vector<std::vector<std::byte>>(2)};
  for (uint32_t i = 0; i < tokens; ++i) made.tokens.push_back(first_token + i);
  const KvLayout pages = layout();
  if (whole) made.pages[0].resize(pages.groups[0].page_bytes, std::byte{7});
  if (window) made.pages[1].resize(pages.groups[1].page_bytes, std::byte{9});
  return made;
}

// Two branches, a leaf that is not full, nodes without one of their pages, and more than there is room for.
std::vector<std::vector<KvNode>> trees() {
  constexpr uint32_t kRoot = KvNode::kNoParent;
  std::vector<std::vector<KvNode>> trees = {
      {node(kRoot, 1, 2, true, true)},
      {node(kRoot, 1, 1, true, true)},
      {node(kRoot, 1, 2, true, false), node(0, 3, 2, true, true), node(0, 5, 1, true, true)},
      {node(kRoot, 1, 2, true, true), node(kRoot, 3, 2, true, true), node(1, 5, 2, true, false)},
      {node(kRoot, 1, 2, true, true), node(kRoot, 1, 2, true, true), node(1, 5, 2, true, false)},
      {}};
  trees[4][1].salt = {.key = 3, .text = 4};  // the same tokens, and not the same page
  for (uint32_t i = 0; i < 7; ++i)
    trees.back().push_back(node(i == 0 ? kRoot : i - 1, 10 + 2 * i, 2, true, i >= 5));
  return trees;
}

// As with_checksums() wants them.
std::vector<std::byte> parts_of(const std::vector<KvNode>& nodes) {
  std::vector<std::byte> input;
  const auto add = [&](const std::vector<std::byte>& part) {
    CHECK(part.size() < 256);
    input.push_back(std::byte(part.size()));
    input.insert(input.end(), part.begin(), part.end());
  };
  for (const KvNode& node : nodes) {
    std::vector<std::byte> part;
    append(part, 1, 4);
    append(part, node.parent, 4);
    if (node.parent == KvNode::kNoParent) {
      append(part, node.salt.key, 8);
      append(part, node.salt.text, 8);
      append(part, node.salt.pruned, 8);
    }
    append(part, node.tokens.size(), 4);
    for (const auto& page : node.pages) append(part, page.empty() ? 0 : 1, 1);
    for (const TokenId token : node.tokens) append(part, token, 4);
    for (const auto& page : node.pages) part.insert(part.end(), page.begin(), page.end());
    add(part);
  }
  std::vector<std::byte> end;
  append(end, 2, 4);
  append(end, nodes.size(), 8);
  add(end);
  return input;
}

// Nodes of a seed that could not be restored would lead nowhere.
void check_seed(const std::vector<std::byte>& file) {
  const std::vector<uint32_t> pages = {9, 9};
  HostKv kv(layout(), pages);
  const auto read = [&](uint64_t offset, std::span<std::byte> into) {
    std::memcpy(into.data(), file.data() + offset, into.size());
  };
  CHECK(restore_snapshot(kv, kv.make_moves(), kIdentity, {"seed", file.size(), read}).nodes > 0);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::filesystem::path folder = (*arguments)[i];
    if (!std::filesystem::is_directory(folder)) continue;
    size_t number = 0;
    for (const std::vector<KvNode>& tree : trees()) {
      const std::vector<std::byte> parts = parts_of(tree), whole = with_checksums(parts);
      check_seed(whole);
      for (const auto& [kind, bytes] : {std::pair("parts", &parts), std::pair("whole", &whole)}) {
        std::ofstream file(folder / fmt::format("{}_{}", kind, number), std::ios::binary);
        file.write(reinterpret_cast<const char*>(bytes->data()), std::streamsize(bytes->size()));
      }
      ++number;
    }
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const quire::BoundedWork work(size);
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  restore(input);
  restore(with_checksums(input));
  difference({reinterpret_cast<const char*>(data), size}, own_identity());
  return 0;
}
