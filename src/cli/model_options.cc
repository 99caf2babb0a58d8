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
#include "cli/kv_choice.h"
#include "cli/model_name.h"
#include "cli/rank_choice.h"
#include "cli/tell.h"
#include "engine/drafts/model_drafter.h"
#include "engine/drafts/mtp_drafter.h"
#include "engine/drafts/suffix_drafter.h"
#include "engine/pruning/token_scorer.h"
#include "kv/kv_cache.h"
#include "model/divide.h"
#include "model/placement.h"
#include "model/refusal.h"
#include "ranks/open_ranks.h"

namespace quire::cli {
namespace {

template <class T>
void set_if(T& value, const std::optional<T>& given) {
  if (given) value = *given;
}

}  // namespace

void ModelChoice::add_to(CLI::App& command) {
  command.add_option("-m,--model", model, kModelHelp)->capture_default_str();
  add_offline_to(command, offline);
}

void ModelChoice::add_offline_to(CLI::App& command, bool& offline) {
  command.add_flag("--offline", offline, "never ask the hub: only what is here (or HF_HUB_OFFLINE=1)");
}

std::string ModelChoice::path() const {
  if (path_.empty() || path_of_ != model) path_ = model_path(model, offline ? Hub::offline : Hub::ask);
  path_of_ = model;
  return path_;
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
  command
      .add_option(
          "--gpu-layers", gpu_layers,
          "how many layers, the last, a GPU computes, the CPU being left the others: a number, or auto "
          "(all, or as many as its memory holds)")
      ->capture_default_str();
  command.add_flag(
      "--cpu-experts{all}", cpu_experts,
      "leave the experts of all layers to the CPU, or with =N those of the last N layers that have any");
}

void add_device_to(CLI::App& command, std::string& device) {
  command
      .add_option("--device", device,
                  "where to compute: cpu, cuda:N, or auto (a GPU if there is one; see quire devices)")
      ->capture_default_str();
}

uint32_t ModelOptions::own_threads() const {
  if (threads) return *threads;
  return ranks ? own_cpus(usable_cpus()) : usable_cpus();
}

DeviceChoice ModelOptions::choice() const {
  return {.device = ranks ? "cpu" : device,  // where they are refused a GPU
          .kernels = kernels,
          .threads = own_threads()};
}

void ModelOptions::add_draft_to(CLI::App& command) {
  command.add_option(
      "--draft", draft,
      "who guesses ahead: a small model with the same tokens, 'lookup' (what stood in the text before), "
      "'suffix' (that and late answers to others), or 'mtp' (the layer of the model itself that predicts "
      "further tokens, where it has one)");
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
  tell(fmt::format("context limited to {} tokens by --kv-memory {}", fits, kv_memory));
  options.context = fits;
  return options;
}

ModelOptions::Opened ModelOptions::open() const {
  const std::string file = path();
  if (ranks) {
    const auto head = open_model_file(file);
    check_divided(*this, *head, read_model_spec(*head));
  }
  std::unique_ptr<Backend> backend = open_backend(choice());
  const bool chooses_kv = kv == "auto";
  if (kv.empty() || chooses_kv) kv = usual_kv(*backend);
  // The head alone tells the context, on which frequencies may depend.
  EngineOptions engine;
  LoadOptions load{.threads = own_threads(),
                   .kernels = kernels,
                   .device = choice().device,
                   .placement = {},
                   .ranks = ranks};
  {
    const auto head = open_model_file(file);
    ModelSpec spec = read_model_spec(*head);
    if (ranks) divide(spec, ranks->place());
    engine = engine_options(spec);
    load.placement = place_model(*head, spec, engine, backend);
    if (const std::string refusal = refusal_of(*head, spec, backend->traits()); !refusal.empty())
      throw Error("{}", refusal);
    if (chooses_kv) {
      kv = choose_kv(file, load);
      engine = engine_options(spec);
    }
    if (prunes_with)
      check_heads(*prunes_with, make_kv_layout(kv_shapes(spec, engine.kv_formats)), backend->traits());
    engine.pipeline = backend->traits().pipeline;
    // Pages of the host's memory are taken when they are first written; of a device's, all at once.
    if (max_sequences > 1 || backend->traits().memory != MemoryKind::host) {
      share_memory(*head, spec, *backend, engine);
      if (backend->traits().memory != MemoryKind::host) tell_plan(*head, spec, *backend, engine);
    } else if (!memory.empty()) {
      fit_memory(*head, spec, *backend, engine);
    }
    if (ranks) tell_terms(*ranks, *head, engine, *backend, kv);
  }
  load.context = engine.context;
  Opened opened{.model = std::make_unique<LoadedModel>(file, load), .engine = engine};
  for (const std::string& loss : opened.model->weights().losses) tell(loss);
  if (draft == "lookup") {
    opened.drafter = std::make_unique<LookupDrafter>();
  } else if (draft == "suffix") {
    opened.drafter = std::make_unique<SuffixDrafter>();
  } else if (draft == "mtp") {
    const LoadedModel& model = *opened.model;
    if (model.backend().traits().memory != MemoryKind::host || is_split(model.spec()))
      throw Error("--draft mtp guesses on a CPU alone so far: use --device cpu, or another drafter");
    opened.predictor = std::make_unique<Predictor>(
        load_predictor(model.shared_file(), {.context = load.context}, model.weights(), model.backend()));
    opened.drafter = std::make_unique<MtpDrafter>(*opened.predictor, model.engine_model(), engine);
  } else if (!draft.empty()) {
    load.placement = {};  // a small model is no burden
    load.ranks = nullptr;
    opened.draft_model = std::make_unique<LoadedModel>(ModelChoice{draft, offline}.path(), load);
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
