#pragma once

#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "model/predictor.h"

namespace quire::cli {

// -m, and what it means (cli/model_name.h).
struct ModelChoice {
  std::string model = "house";
  bool offline = false;
  void add_to(CLI::App& command);
  static void add_offline_to(CLI::App& command, bool& offline);
  // The file or folder. A model of the hub that is not here is fetched, once.
  std::string path() const;

  mutable std::string path_of_ = {}, path_ = {};  // once it is known: of which name, and it
};

// The options of every command that computes.
struct ModelOptions : ModelChoice {
  std::optional<uint32_t> threads;
  std::optional<uint32_t> context;
  mutable std::string kv;  // open() replaces none, and `auto`, by what they come to
  bool no_kv_cache = false;
  std::string kv_memory;
  std::string kv_states;
  std::string memory;  // of the whole process
  uint32_t prefill_chunk = 512;
  size_t grammar_bytes = 0;  // that grammars may take, of the memory there is
  std::string kernels = "auto";
  std::string device = "auto";
  std::string gpu_layers = "auto";  // or a number
  std::string cpu_experts;          // empty: as few as must be; "all", or a number of layers
  uint32_t max_sequences = 1;       // that run at once; several share the KV memory
  std::string draft;                // empty: none; "lookup", or a model
  uint32_t draft_tokens = 8;
  std::shared_ptr<Ranks> ranks;  // who divide the model, of which this process is the first; null: nobody
  std::optional<PruningPolicy> prunes_with;  // what is known of requests to come, for a device that cannot

  void add_to(CLI::App& command);
  void add_draft_to(CLI::App& command);

  // What the options come to for this model. A context that --kv-memory cannot hold is an Error if it was asked for, and
  // is lowered, with a word to the user, if it was not.
  EngineOptions engine_options(const ModelSpec& spec) const;
  // Keeps the whole process within --memory: lowers the context, or refuses with the numbers.
  void fit_memory(const ModelFile& file, const ModelSpec& spec, const Backend& backend,
                  EngineOptions& options) const;
  // Gives several sequences the KV memory they may share: what was asked for, else what the machine can spare but no more
  // than all of them could fill. Lowers the context if not even one fits.
  void share_memory(const ModelFile& file, const ModelSpec& spec, const Backend& backend,
                    EngineOptions& options) const;
  // Decides what of a model stays with the CPU because it was asked for or the device cannot hold all, says so, and puts it into
  // the spec; then `backend` has both sides.
  Placement place_model(const ModelFile& file, ModelSpec& spec, const EngineOptions& options,
                        std::unique_ptr<Backend>& backend) const;
  // Says what will be in the memory of a device, which is taken all at once.
  // "cuda:0 has 8.6 GB free of 150.1 GB; other programs have 141.5 GB": of a device.
  static std::string told_free(const Backend& backend);
  static void tell_plan(const ModelFile& file, const ModelSpec& spec, const Backend& backend,
                        const EngineOptions& options);
  DeviceChoice choice() const;
  uint32_t own_threads() const;  // as they were given, or as many as there are CPUs for this process
  // Loads the model for that context.
  struct Opened {
    std::unique_ptr<LoadedModel> model;
    EngineOptions engine;
    std::unique_ptr<LoadedModel> draft_model = {};
    std::unique_ptr<Predictor> predictor = {};  // of the model, for its drafter
    std::unique_ptr<Drafter> drafter = {};

    std::unique_ptr<Engine> make_engine() {
      return std::make_unique<Engine>(model->engine_model(), engine, std::move(drafter));
    }
  };
  Opened open() const;
};

// Sampling as the user gave it; what was not given comes from the model's generation config.
struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p, typical, repetition_penalty;
  std::optional<uint32_t> top_k;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::string> logit_bias;  // "ID=BIAS"
  std::optional<uint64_t> seed;
  uint32_t max_tokens = 0;
  std::vector<std::string> stop;

  void add_to(CLI::App& command);
  Request request(const LoadedModel& model) const;
};

// The user asked for something that is not to be had: exit code 2.
template <class... Args>
[[noreturn]] void wrong_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw CLI::ValidationError(fmt::format(format, std::forward<Args>(args)...));
}

// --device, for the commands that compute.
void add_device_to(CLI::App& command, std::string& device);

// What --kv is if it is not given: the format in which the backend is fastest.
std::string usual_kv(const Backend& backend);
// Of --kv; what KvFormats::parse refuses is wrong usage.
KvFormats parse_kv_formats(const std::string& text);
inline constexpr const char* kKvHelp =
    "format of the KV cache: f16 (default; bf16 where the kernels multiply it), bf16, f32, int8, fp8, q4; or "
    "apart for keys and values: k=int8,v=q4; "
    "and others for some layers: int8,0-1:f16,last:k=f16,v=int8; or auto (not bench, inspect): the smallest "
    "that does not harm the model";

// "512M", "2G", "2GiB", "1000000" in bytes; anything else is wrong usage.
size_t parse_size(const std::string& text);
// "1.5 GB", "22.5 kB", "1 page", "2 pages": for people.
std::string human_bytes(size_t bytes);
std::string counted(size_t count, std::string_view what);
// All of a file, or of stdin for "-".
std::string read_text(const std::string& path);

}  // namespace quire::cli
