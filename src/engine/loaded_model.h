#pragma once

#include <memory>
#include <string>

#include "device/open_backend.h"
#include "engine/engine.h"
#include "engine/model_text.h"
#include "kv/tiers/kv_snapshot.h"
#include "model/model_file.h"
#include "model/model_spec.h"
#include "model/placement.h"
#include "model/weights.h"
#include "ranks/ranks.h"

namespace quire {

struct LoadOptions {
  uint32_t context = 0;  // 0: what the model was trained for
  uint32_t threads = 1;
  std::string kernels = "auto";       // or scalar, exact
  std::string device = "auto";        // cpu, cuda:N
  Placement placement = {};           // of a device: what is left to the CPU
  std::shared_ptr<Ranks> ranks = {};  // who divide the model; null: nobody does

  DeviceChoice choice() const { return {.device = device, .kernels = kernels, .threads = threads}; }
};

// A model ready to run: its file, spec, weights and text, and the backend that computes.
class LoadedModel {
 public:
  // Throws Error before anything is loaded if the file is not a model, or one that the device's kernels cannot compute.
  LoadedModel(const std::string& path, const LoadOptions& options);

  const ModelFile& file() const { return *file_; }
  std::shared_ptr<const ModelFile> shared_file() const { return file_; }
  const ModelSpec& spec() const { return spec_; }
  const Weights& weights() const { return weights_; }
  const ModelText& text() const { return *text_; }
  Backend& backend() const { return *backend_; }
  EngineModel engine_model() const;
  // Whose pages its engines compute. Reads samples of the file.
  KvIdentity kv_identity() const;
  // Of the kernels that compute it, and where: what its answers may depend on.
  std::string kernels() const;

 private:
  std::shared_ptr<Ranks> ranks_;
  std::shared_ptr<const ModelFile> file_;
  ModelSpec spec_;
  std::unique_ptr<Backend> backend_;
  Weights weights_;
  std::unique_ptr<const ModelText> text_;
};

}  // namespace quire
