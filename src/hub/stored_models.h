#pragma once

#include <string>
#include <vector>

#include "hub/hub_cache.h"
#include "hub/hub_places.h"

namespace quire {

// A model that is on this machine, in a store that others fill too.
struct StoredEntry {
  std::string name;  // what -m takes
  std::string path;
  uint64_t bytes = 0;
  int64_t last_used = 0;  // seconds since 1970, as far as the disk keeps it; 0: it does not
};

// What the cache of Hugging Face and the store of Ollama hold whole. Whether quire can compute it, only its head says.
std::vector<StoredEntry> stored_models(const HubPlaces& places);

// When a file was last read or made, whichever the disk knows.
int64_t last_used(const std::string& path);

// What removing a name would take away: decided first, so that it can be said, then done.
struct Removal {
  std::vector<std::filesystem::path> paths = {};  // in this order; folders with all that is in them
  std::vector<std::filesystem::path> links = {};  // that lead to what is removed
  uint64_t bytes = 0;                             // that become free
  std::string what = {};                          // for people
  std::vector<std::filesystem::path> locks = {};  // of what must not be on its way just now

  // Throws Error if another program is fetching it, or the disk does not let it.
  void carry_out() const;
};

// hf:org/name: all that is here of it. With @REVISION that one alone, with :WHICH that file: blobs that another snapshot
// holds stay. Throws Error if there is none.
Removal plan_removal(const HubName& name, bool whole_repo, const HubCache& cache);

}  // namespace quire
