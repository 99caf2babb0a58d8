#pragma once

#include <string>
#include <string_view>

#include "base/keyed_hash.h"
#include "engine/engine_loop.h"
#include "kv/tiers/kv_snapshot.h"

namespace quire {

// How much a server writes to its folder.
struct SnapshotLimits {
  uint32_t files = 16;
  uint64_t bytes = 0;  // of all files together; 0: no limit but that of their number
};

// The one folder in which a server reads and writes snapshots.
class SnapshotFolder {
 public:
  static constexpr const char* kUsualName = "cache.kv";

  // Throws Error if there is no such folder.
  SnapshotFolder(std::string folder, KvIdentity identity, const SnapshotLimits& limits = {});

  // Letters, digits, '.', '_' and '-', no dot in front: a name never leads out of the folder.
  static bool is_name(std::string_view name);

  // Under which the salts of its snapshots are made.
  const HashSecret& secret() const { return secret_; }

  // Saves what is published now, in place of a file of that name. Waits for the engine and the disk, and so runs on a thread that nobody waits for: the
  // engine's only copies a slice of pages between two steps. Throws ApiError. REQUIRES: is_name(name).
  SnapshotFigures save(EngineLoop& loop, const std::string& name) const;

  // Says what was restored; or why nothing was, and then the cache is as it was. REQUIRES: nobody else uses the engine.
  std::string restore(Engine& engine, const std::string& name) const;

 private:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  // What may be written under this name. Throws ApiError if there are too many files already.
  uint64_t bytes_left(const std::string& name) const;

  std::string folder_;
  KvIdentity identity_;
  SnapshotLimits limits_;
  HashSecret secret_;
};

}  // namespace quire
