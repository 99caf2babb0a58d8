#include "cli/model_options.h"

#include <charconv>
#include <climits>
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "cli/house.h"
#include "cli/kv_choice.h"
#include "engine/memory_plan.h"
#include "engine/model_drafter.h"
#include "kv/kv_cache.h"

namespace quire::cli {
namespace {

template <class T>
void set_if(T& value, const std::optional<T>& given) {
  if (given) value = *given;
}

}  // namespace

void ModelChoice::add_to(CLI::App& command) {
  command
      .add_option("-m,--model", model,
                  "a .gguf file, a folder with config.json and *.safetensors, or 'house'")
      ->capture_default_str();
}

std::string ModelChoice::path() const {
  if (model == "house") return house_path("house.gguf");
  if (model == "house-draft") return house_path("draft.gguf");
  return model;
}

void ModelOptions::add_to(CLI::App& command) {
  ModelChoice::add_to(command);
  command.add_option("--threads", threads, "threads that compute (default: the CPUs this process may use)")
      ->check(CLI::Range(1u, 1024u));
  command
      .add_option("--ctx", context,
                  "tokens of prompt and answer together (default: what the model was trained for)")
      ->check(CLI::Range(2u, 1u << 24));
  command.add_option("--kv", kv, kKvHelp)->capture_default_str();
  command.add_flag("--no-kv-cache", no_kv_cache,
                   "forget keys and values after each step and compute them anew");
  command.add_option("--kv-memory", kv_memory, "memory for the KV cache, e.g. 512M or 4G");
  command.add_option("--kv-states", kv_states,
                     "of it, memory for the states of recurrent layers, those kept for later among them");
  command.add_option(
      "--memory", memory,
      "memory for everything: weights, KV cache, scratch; refused before loading if too little");
  command.add_option("--prefill-chunk", prefill_chunk, "most prompt tokens in one step")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 20));
  command
      .add_option("--kernels", kernels,
                  "auto, exact (dequantized weights, f32 activations), scalar, or an instruction set")
      ->capture_default_str()
      ->check(CLI::IsMember(all_kernel_names()));
  add_device_to(command, device);
}

void add_device_to(CLI::App& command, std::string& device) {
  command
      .add_option("--device", device,
                  "where to compute: cpu, cuda:N, or auto (a GPU if there is one; see quire devices)")
      ->capture_default_str();
}

DeviceChoice ModelOptions::choice() const {
  return {.device = device, .kernels = kernels, .threads = threads.value_or(usable_cpus())};
}

void ModelOptions::add_draft_to(CLI::App& command) {
  command.add_option(
      "--draft", draft,
      "who guesses ahead: a small model with the same tokens, or 'lookup' (what stood in the text before)");
  command.add_option("--draft-tokens", draft_tokens, "most tokens guessed at a time")
      ->capture_default_str()
      ->check(CLI::Range(1u, 64u));
}

EngineOptions ModelOptions::engine_options(const ModelSpec& spec) const {
  EngineOptions options;
  options.kv_formats = parse_kv_formats(kv);
  options.context = context.value_or(spec.context);
  options.prefill_chunk = prefill_chunk;
  options.kv_cache = !no_kv_cache;
  options.draft_tokens = draft_tokens;
  if (!kv_states.empty()) options.state_bytes = parse_size(kv_states);
  if (kv_memory.empty() || max_sequences > 1) return options;

  const size_t memory = parse_size(kv_memory);
  const KvLayout layout = make_kv_layout(kv_shapes(spec, options.kv_formats));
  const auto bytes_of = [&](uint32_t tokens) {
    return kv_bytes(layout, pages_for(layout, tokens, std::min(prefill_chunk, tokens), 1));
  };
  uint32_t fits = options.context;
  while (fits > 0 && bytes_of(fits) > memory) fits -= std::min(fits, kPageTokens);
  if (fits == options.context) return options;
  if (context || fits < kPageTokens) {
    throw Error("a context of {} tokens needs {} of KV cache, but --kv-memory allows {}", options.context,
                human_bytes(bytes_of(options.context)), human_bytes(memory));
  }
  std::cerr << "context limited to " << fits << " tokens by --kv-memory " << kv_memory << "\n";
  options.context = fits;
  return options;
}

void ModelOptions::fit_memory(const ModelFile& file, const ModelSpec& spec, const Backend& backend,
                              EngineOptions& options) const {
  const size_t limit = parse_size(memory);
  const uint32_t asked = options.context;
  const auto plan = [&] { return plan_memory(file, spec, options, backend); };
  while (!context && options.context > kPageTokens && plan().total() > limit) options.context -= kPageTokens;
  if (const MemoryPlan least = plan(); least.total() > limit) {
    throw Error(
        "--memory {} is too little: {} of weights, {} of KV cache for {} tokens and {} of scratch are {}",
        memory, human_bytes(least.weights), human_bytes(least.kv), options.context,
        human_bytes(least.scratch), human_bytes(least.total()));
  }
  if (options.context < asked)
    std::cerr << "context limited to " << options.context << " tokens by --memory " << memory << "\n";
}

void ModelOptions::share_memory(const ModelFile& file, const ModelSpec& spec, const Backend& backend,
                                EngineOptions& options) const {
  // Of what is left beside the weights: others live in a host's memory too, and few in a GPU's.
  const double spared = backend.traits().memory == MemoryKind::host ? 0.8 : 0.94;
  options.max_sequences = max_sequences;
  const KvLayout layout = make_kv_layout(kv_shapes(spec, options.kv_formats));
  const auto bytes_of = [&](uint32_t sequences) {
    const uint32_t chunk = std::min(prefill_chunk, options.context);
    std::vector<uint32_t> pages = pages_for(layout, options.context, chunk, sequences);
    if (layout.has_states() && sequences > 1) pages[*layout.states] += kStatesKept;
    return kv_bytes(layout, pages);
  };
  options.kv_bytes = bytes_of(1);
  const MemoryPlan rest = plan_memory(file, spec, options, backend);
  const size_t beside = rest.weights + rest.scratch;
  const size_t given = memory.empty() ? backend.available_memory() : parse_size(memory);
  size_t spare = given > beside ? given - beside : 0;
  if (memory.empty()) spare = given == 0 ? bytes_of(max_sequences) : size_t(spared * double(spare));
  if (!kv_memory.empty()) spare = std::min(memory.empty() ? SIZE_MAX : spare, parse_size(kv_memory));

  const uint32_t asked = options.context;
  while (!context && options.context > kPageTokens && bytes_of(1) > spare) options.context -= kPageTokens;
  if (bytes_of(1) > spare) {
    throw Error("there are {} for the KV cache beside {} of weights and scratch, but {} tokens need {}",
                human_bytes(spare), human_bytes(beside), options.context, human_bytes(bytes_of(1)));
  }
  if (options.context < asked)
    std::cerr << "context limited to " << options.context << " tokens by the memory there is\n";
  // States that are asked for come out of what there is, whatever the sequences need.
  options.kv_bytes = std::min(spare, bytes_of(std::max(max_sequences, 2u)) + options.state_bytes);
}

namespace {

// Of a device, whose memory is taken all at once: what will be in it.
std::string told_plan(const MemoryPlan& plan, const ModelSpec& spec, const EngineOptions& options,
                      const Backend& backend) {
  const BackendTraits traits = backend.traits();
  const KvRoom room = kv_room(spec, options.kv_formats, options.context, plan.kv);
  return fmt::format("{} ({}), {} free: weights {}, KV cache {} for {} tokens, scratch {}", traits.device,
                     traits.description, human_bytes(backend.available_memory()), human_bytes(plan.weights),
                     human_bytes(plan.kv), room.tokens, human_bytes(plan.scratch));
}

}  // namespace

ModelOptions::Opened ModelOptions::open() const {
  const std::string file = path();
  const LoadOptions any_context{
      .threads = threads.value_or(usable_cpus()), .kernels = kernels, .device = device};
  const std::unique_ptr<Backend> backend = open_backend(choice());
  if (kv.empty()) kv = usual_kv(*backend);
  if (kv == "auto") kv = choose_kv(file, any_context);
  // The head alone tells the context, on which frequencies may depend.
  EngineOptions engine;
  {
    const auto head = open_model_file(file);
    const ModelSpec spec = read_model_spec(*head);
    engine = engine_options(spec);
    engine.pipeline = backend->traits().pipeline;
    // Pages of the host's memory are taken when they are first written; of a device's, all at once.
    if (max_sequences > 1 || backend->traits().memory != MemoryKind::host) {
      share_memory(*head, spec, *backend, engine);
      if (backend->traits().memory != MemoryKind::host)
        std::cerr << told_plan(plan_memory(*head, spec, engine, *backend), spec, engine, *backend) << "\n";
    } else if (!memory.empty()) {
      fit_memory(*head, spec, *backend, engine);
    }
  }
  LoadOptions load = any_context;
  load.context = engine.context;
  Opened opened{.model = std::make_unique<LoadedModel>(file, load), .engine = engine};
  if (draft == "lookup") {
    opened.drafter = std::make_unique<LookupDrafter>();
  } else if (!draft.empty()) {
    opened.draft_model = std::make_unique<LoadedModel>(ModelChoice{draft}.path(), load);
    opened.drafter =
        std::make_unique<ModelDrafter>(opened.draft_model->engine_model(), opened.model->spec(), engine);
  }
  return opened;
}

void SamplingFlags::add_to(CLI::App& command) {
  command.add_option("-n,--max-tokens", max_tokens,
                     "most tokens of the answer (0: until the context is full)");
  command.add_option("--temperature", temperature, "0 is greedy");
  command.add_option("--top-p", top_p, "keep the likeliest tokens that hold this much probability");
  command.add_option("--top-k", top_k, "keep this many tokens (0: all)");
  command.add_option("--min-p", min_p, "drop tokens less likely than this share of the likeliest");
  command.add_option("--typical", typical,
                     "keep the tokens of typical surprise that hold this much probability");
  command.add_option("--repetition-penalty", repetition_penalty, "divides the score of tokens seen before");
  command.add_option("--presence-penalty", presence_penalty, "subtracted once from tokens of the answer");
  command.add_option("--frequency-penalty", frequency_penalty, "subtracted per occurrence in the answer");
  command
      .add_option("--logit-bias", logit_bias, "ID=BIAS, added to a token's score; may be given several times")
      ->allow_extra_args(false);
  command.add_option("--seed", seed, "the same seed gives the same answer");
  command.add_option("--stop", stop, "a text that ends the answer; may be given several times")
      ->allow_extra_args(false);
}

Request SamplingFlags::request(const LoadedModel& model) const {
  Request request;
  SamplingOptions& sampling = request.sampling;
  sampling = model.text().sampling_defaults;
  set_if(sampling.temperature, temperature);
  set_if(sampling.top_p, top_p);
  set_if(sampling.top_k, top_k);
  set_if(sampling.min_p, min_p);
  set_if(sampling.typical, typical);
  set_if(sampling.repetition_penalty, repetition_penalty);
  sampling.presence_penalty = presence_penalty;
  sampling.frequency_penalty = frequency_penalty;
  for (const std::string& entry : logit_bias) {
    uint32_t token = 0;
    const size_t equals = entry.find('=');
    const auto [end, problem] =
        std::from_chars(entry.data(), entry.data() + std::min(equals, entry.size()), token);
    char* rest = nullptr;
    const float bias = equals == std::string::npos ? 0 : std::strtof(entry.c_str() + equals + 1, &rest);
    if (equals == std::string::npos || problem != std::errc() || end != entry.data() + equals || *rest != 0) {
      wrong_usage("--logit-bias wants ID=BIAS, e.g. 42=-5, not '{}'", entry);
    }
    sampling.logit_bias.emplace_back(token, bias);
  }
  sampling.seed = seed ? *seed : std::random_device()();
  try {
    sampling.check();
  } catch (const Error& error) {
    wrong_usage("{}", error.what());
  }
  request.max_tokens = max_tokens;
  request.stop = stop;
  return request;
}

std::string usual_kv(const Backend& backend) {
  return std::string(name(backend.traits().pages));
}

KvFormats parse_kv_formats(const std::string& text) {
  try {
    return KvFormats::parse(text);
  } catch (const Error& error) {
    wrong_usage("{}", error.what());
  }
}

size_t parse_size(const std::string& text) {
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  for (char& c : unit) c = char(std::toupper(static_cast<unsigned char>(c)));
  if (unit.ends_with("IB")) unit.resize(unit.size() - 2);
  if (unit.ends_with("B")) unit.pop_back();
  const std::string units = "KMGT";
  size_t power = 0;
  if (unit.size() == 1 && units.find(unit) != std::string::npos) power = units.find(unit) + 1;
  if (problem != std::errc() || (power == 0 && !unit.empty()) || !(number > 0) || number > 1e15) {
    wrong_usage("'{}' is not a size; write e.g. 512M or 4G", text);
  }
  const double bytes = number * std::pow(1024.0, double(power));
  if (bytes > 1e18) wrong_usage("'{}' is larger than any memory", text);
  return size_t(bytes);
}

std::string human_bytes(size_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "kB", "MB", "GB", "TB"};
  double value = double(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit < 4; ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} bytes", bytes)
                   : fmt::format("{:.{}f} {}", value, value < 100 ? 1 : 0, kUnits[unit]);
}

std::string counted(size_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("cannot open {}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace quire::cli
