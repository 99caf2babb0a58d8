#pragma once

#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/engine.h"
#include "engine/loaded_model.h"

namespace quire::cli {

// -m, and where `house` is found: beside the program.
struct ModelChoice {
  std::string model = "house";
  void add_to(CLI::App& command);
  std::string path() const;
};

// The options of every command that computes.
struct ModelOptions : ModelChoice {
  std::optional<uint32_t> threads;
  std::optional<uint32_t> context;
  std::string kv = "f16";
  bool no_kv_cache = false;
  std::string kv_memory;
  uint32_t prefill_chunk = 512;
  std::string kernels = "auto";

  void add_to(CLI::App& command);
  std::unique_ptr<LoadedModel> load() const;
  EngineOptions engine_options(const LoadedModel& model) const;
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

// "512M", "2G", "2GiB", "1000000" in bytes; throws Error for anything else.
size_t parse_size(const std::string& text);
// "1.5 GB", "22.5 kB": for people.
std::string human_bytes(size_t bytes);
// All of a file, or of stdin for "-".
std::string read_text(const std::string& path);

}  // namespace quire::cli
