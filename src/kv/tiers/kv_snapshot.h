#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/replacing_file.h"
#include "kv/tiers/kv_export.h"

namespace quire {

// A file of published pages. All numbers are little-endian.
//
//   head   char magic[8]; u32 version; u32 bytes; char identity[bytes]; u64 checksum
//   node   u32 1; u32 parent; u64 salt[3] if it has no parent; the document if the last of these is not 0; u32 tokens;
//          u8 has_page[pages of a node]; u32 token[tokens]; the pages that it has; u64 checksum
//   document   u32 rows; u32 bytes; char name[bytes]; u32 heads; of each u32 cells; u32 cell[cells]
//   end    u32 2; u64 nodes; u64 checksum
//
// A checksum (XXH3 of 64 bits) goes over all of its part and is seeded with the one before: a part cannot be missing,
// repeated, moved or come from another file. It tells accidents, not forgeries.
inline constexpr uint32_t kSnapshotVersion = 3;

// Raised by every change after which the same tokens of the same model get other bytes in their pages.
inline constexpr uint32_t kKvNumerics = 5;

// Whose pages they are, besides their layout: pages of equal identities and layouts have equal bytes for equal tokens.
struct KvIdentity {
  std::string model_name;  // for people
  std::string model;       // of the weights: two models that compute differently differ here
  std::string positions;   // of how positions become numbers, which may depend on the context
  std::string kernels;
  uint32_t numerics = kKvNumerics;
};

// The identity and the layout as a snapshot's head has them (JSON). Equal texts: the pages fit.
std::string describe(const KvIdentity& identity, const KvLayout& layout);
// In what two of them differ, as a sentence. The first may come from anywhere.
std::string difference(const std::string& snapshot, const std::string& run);

// Writes a snapshot node by node; it replaces a file of that name when it is finished. Throws Error if the disk does
// not take it. Any one thread.
class SnapshotWriter {
 public:
  SnapshotWriter(std::unique_ptr<ReplacingFile> file, const KvIdentity& identity, const KvLayout& layout);

  void add(const KvNode& node);
  void finish();
  uint64_t nodes() const { return nodes_; }
  uint64_t size() const { return file_->size(); }

 private:
  void write_part();

  std::unique_ptr<ReplacingFile> file_;
  std::vector<std::byte> part_;
  uint64_t checksum_ = 0;  // of the part before
  uint64_t nodes_ = 0;
};

// Bytes from outside that can be read anywhere; `read` throws Error if it cannot.
struct SnapshotBytes {
  std::string name;
  uint64_t size = 0;
  std::function<void(uint64_t offset, std::span<std::byte> into)> read;
};

// Reads a snapshot node by node. Whatever the bytes are, it takes no more memory than one node of this layout needs and
// for each node a few bytes, and gives only nodes that KvImport takes. What does not fit or is damaged throws Error.
class SnapshotReader {
 public:
  // Reads the head. The layout must outlive it.
  SnapshotReader(SnapshotBytes bytes, const KvIdentity& identity, const KvLayout& layout);

  // Nothing: that was all, and all of it was good. Until then the nodes may be the good beginning of a torn file.
  std::optional<KvNode> next();

 private:
  void read_head(const std::string& own);
  std::span<const std::byte> extend_part(uint64_t bytes);
  void check_part();
  KvNode read_node();
  PrunedDocument read_document();
  void read_end();
  std::string where() const;
  [[noreturn]] void damaged(const std::string& what) const;

  SnapshotBytes bytes_;
  const KvLayout& layout_;
  std::vector<std::byte> part_;
  uint64_t offset_ = 0;        // behind the part
  uint64_t checksum_ = 0;      // of the part before
  std::vector<bool> is_full_;  // by node
};

struct SnapshotFigures {
  uint64_t nodes = 0, tokens = 0, pages = 0;
  uint64_t bytes = 0;            // of the file, or of the pages that were filled
  uint64_t tokens_left_out = 0;  // no page was free for them
};

// Writes nodes as they are given, until `next` gives none. Throws Error if the disk does not take them, or they are more than
// `most_bytes`; then a file that was there before is still there. Nothing to write is an Error too: it would replace something
// by nothing.
using NextNodes = std::function<std::vector<KvNode>()>;
SnapshotFigures save_snapshot(const std::string& path, const KvIdentity& identity, const KvLayout& layout,
                              const NextNodes& next, uint64_t most_bytes = UINT64_MAX);

// Fills free pages from a file: from all of it, or from none if anything in it does not fit or is damaged. Then it
// throws Error, and the cache is as it was. If memory runs out it is empty. REQUIRES: nobody holds a page.
SnapshotFigures restore_snapshot(KvCache& kv, const MakeMoves& make, const KvIdentity& identity,
                                 const std::string& path);
SnapshotFigures restore_snapshot(KvCache& kv, const MakeMoves& make, const KvIdentity& identity,
                                 SnapshotBytes bytes);
SnapshotFigures restore_nodes(KvCache& kv, const MakeMoves& make, SnapshotReader& reader);

}  // namespace quire
