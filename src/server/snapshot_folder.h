#pragma once

#include <string>
#include <string_view>

#include "engine/engine_loop.h"
#include "kv/kv_snapshot.h"

namespace quire {

// The one folder in which a server reads and writes snapshots.
class SnapshotFolder {
 public:
  static constexpr const char* kUsualName = "cache.kv";

  // Throws Error if there is no such folder.
  SnapshotFolder(std::string folder, KvIdentity identity);

  // Letters, digits, '.', '_' and '-', no dot in front: a name never leads out of the folder.
  static bool is_name(std::string_view name);

  // Saves what is published now. Waits for the engine and the disk, and so runs on a thread that nobody waits for: the
  // engine's only copies a slice of pages between two steps. Throws ApiError. REQUIRES: is_name(name).
  SnapshotFigures save(EngineLoop& loop, const std::string& name) const;

  // Says what was restored; or why nothing was, and then the cache is as it was. REQUIRES: nobody else uses the engine.
  std::string restore(Engine& engine, const std::string& name) const;

 private:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
  KvIdentity identity_;
};

}  // namespace quire
