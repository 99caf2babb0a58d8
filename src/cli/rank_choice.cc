#include "cli/rank_choice.h"

#include "base/error.h"
#include "base/json.h"
#include "model/divide.h"
#include "model/model_identity.h"
#include "ranks/open_ranks.h"
#include "runner/follower.h"

namespace quire::cli {
namespace {

// Loads the part of this rank, and does what rank 0 says until it has left.
void follow_rank_0(const ModelOptions& options, Ranks& ranks) {
  const std::vector<std::byte> message = ranks.hear();
  if (message.empty()) return;  // rank 0 has refused, and says why
  const Json terms = Json::parse(reinterpret_cast<const char*>(message.data()),
                                 reinterpret_cast<const char*>(message.data()) + message.size());
  // Rank 0 has fetched what was missing; on another machine it has to be there.
  const std::string path = ModelChoice{.model = options.model, .offline = true}.path();
  const std::shared_ptr<const ModelFile> file = open_model_file(path);
  if (model_identity(*file) != terms.at("model").get<std::string>())
    throw Error("{} is not the model that rank 0 has", path);
  ModelSpec spec = read_model_spec(*file, {.context = terms.at("context").get<uint32_t>()});
  divide(spec, ranks.place());
  const auto kernels = terms.at("kernels").get<std::string>();
  const std::unique_ptr<Backend> backend =
      open_backend({.device = "cpu", .kernels = kernels, .threads = options.own_threads()});
  if (backend->traits().kernels != kernels)
    throw Error("it has the kernels {} and rank 0 {}", backend->traits().kernels, kernels);
  Weights weights = load_weights(file, spec, backend->traits());
  prepare_weights(weights, *backend);
  const KvLayout layout = make_kv_layout(kv_shapes(spec, KvFormats::parse(terms.at("kv").get<std::string>())),
                                         terms.at("page_tokens").get<uint32_t>());
  follow({.spec = &spec, .weights = &weights, .backend = backend.get(), .ranks = &ranks}, layout);
}

}  // namespace

bool has_followed(ModelOptions& options) {
  options.ranks = join_ranks();
  if (!options.ranks || options.ranks->leads()) return false;
  try {
    follow_rank_0(options, *options.ranks);
  } catch (const std::exception& problem) {
    options.ranks->give_up(problem.what());
  }
  return true;
}

void refuse_with_ranks(const ModelOptions& options, std::span<const std::pair<const char*, bool>> given) {
  if (!options.ranks) return;
  for (const auto& [option, is_given] : given) {
    if (is_given)
      wrong_usage("{} is not for a model that ranks divide yet: leave it out, or start without mpirun",
                  option);
  }
}

void check_divided(const ModelOptions& options, const ModelFile& file, const ModelSpec& spec) {
  if (!options.ranks) return;
  const std::pair<const char*, bool> given[] = {
      {"--draft mtp", options.draft == "mtp"},
      {"--kv auto", options.kv == "auto"},
      {"--gpu-layers", options.gpu_layers != "auto"},
      {"--cpu-experts", !options.cpu_experts.empty()},
      {"--kv-keep", options.prunes_with.has_value()},
      {"a GPU (--device)", options.device != "auto" && options.device != "cpu"}};
  refuse_with_ranks(options, given);
  const std::string why = why_undivided(file, spec, options.ranks->count());
  if (!why.empty()) throw Error("{}", why);
}

void tell_terms(Ranks& ranks, const ModelFile& file, const EngineOptions& engine, const Backend& backend,
                const std::string& kv) {
  const Json terms = {{"model", model_identity(file)},
                      {"context", engine.context},
                      {"kernels", backend.traits().kernels},
                      {"kv", kv},
                      {"page_tokens", engine.page_tokens}};
  const std::string text = terms.dump();
  ranks.tell(std::as_bytes(std::span(text)));
}

std::string describe_traffic(const ModelOptions& options) {
  if (!options.ranks) return "";
  const Ranks::Traffic& traffic = options.ranks->traffic();
  const auto mean = [](double sum, uint64_t count) { return count == 0 ? 0 : sum / double(count); };
  return fmt::format(
      "[{} ranks: {} gathers of {} in {:.0f} µs on average; {} steps and moves told, {} on average]\n",
      options.ranks->count(), traffic.gathers,
      human_bytes(size_t(mean(double(traffic.gathered_bytes), traffic.gathers))),
      mean(traffic.gather_seconds * 1e6, traffic.gathers), traffic.messages,
      human_bytes(size_t(mean(double(traffic.message_bytes), traffic.messages))));
}

}  // namespace quire::cli
