#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "hub/file_choice.h"
#include "hub/hub_cache.h"
#include "hub/hub_name.h"
#include "hub/hub_places.h"

namespace quire {

// Who wants to know how a pull goes.
class PullWatcher {
 public:
  virtual ~PullWatcher() = default;
  virtual void say(const std::string& sentence) = 0;
  // Of all that is fetched; `there` of it was there before.
  virtual void progress(uint64_t done, uint64_t total, uint64_t there) = 0;
};

// A model that is in the cache.
struct PulledModel {
  std::string path;  // the GGUF file, the first of a split one, or the folder: what quire opens
  uint64_t bytes = 0;
  std::string label;
};

// Makes the model be in the cache as the hub has it now: asks the hub, says what it chooses, fetches what is missing, checks
// every byte. Throws Error with the reason; whatever was fetched until then is kept and counts the next time.
PulledModel pull_model(const HubName& name, const HubPlaces& places, uint64_t memory_bytes,
                       PullWatcher& watcher);

// The model as it is in the cache, if it is there whole; the hub is not asked.
std::optional<PulledModel> find_pulled(const HubName& name, const HubPlaces& places);

// The models of a snapshot that are there whole.
std::vector<StoredModel> whole_models(const HubCache& cache, const HubName& name, const std::string& commit);

// What quire opens of a model in a snapshot.
std::string path_in(const HubCache& cache, const HubName& name, const std::string& commit,
                    const StoredModel& model);

}  // namespace quire
