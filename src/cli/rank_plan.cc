#include "cli/rank_plan.h"

#include <iostream>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/memory_plan.h"
#include "model/divide.h"
#include "model/layer_blocks.h"

namespace quire::cli {
namespace {

// Kinds of networks by what they usually have: a gather takes the time of one message and of its bytes.
struct Network {
  const char* name;
  const char* words;
  double seconds;  // of a message
  double bytes_s;
};
constexpr Network kNetworks[] = {{"memory", "one machine", 3e-6, 5e9},
                                 {"rdma_100g", "100 Gbit/s, RDMA", 5e-6, 12.5e9},
                                 {"ethernet_25g", "25 Gbit/s Ethernet", 25e-6, 3.1e9},
                                 {"ethernet_10g", "10 Gbit/s Ethernet", 30e-6, 1.25e9},
                                 {"ethernet_1g", "1 Gbit/s Ethernet", 50e-6, 0.125e9}};

struct Speed {
  double exchange = 0, token = 0;  // seconds
};

// Of the weights: of experts those that a token chooses; the embedding where it is the head too.
double bytes_of_token(const ModelFile& file, const ModelSpec& spec) {
  std::map<std::string, double> chosen;
  for (const Role& role : all_roles(spec)) {
    if (role.is_stack())
      chosen[role.tensor] = chosen[role.part.tensor] = double(role.used) / double(role.stacked());
  }
  double bytes = 0;
  for (const TensorEntry& tensor : file.tensors()) {
    if (tensor.name == "token_embd.weight" && file.find("output.weight") != nullptr) continue;
    const auto found = chosen.find(tensor.name);
    bytes += double(tensor.bytes) * (found == chosen.end() ? 1.0 : found->second);
  }
  return bytes;
}

}  // namespace

void RankPlan::print(const ModelFile& file, const ModelSpec& spec, const std::string& kv, bool json) const {
  if (const std::string why = why_undivided(file, spec, ranks); !why.empty()) throw Error("{}", why);
  const std::unique_ptr<Backend> backend = open_backend({.device = "cpu", .threads = usable_cpus()});
  EngineOptions options;
  options.kv_formats = parse_kv_formats(kv);
  options.context = spec.context;

  std::vector<MemoryPlan> plans;
  size_t row_bytes = 0;
  for (uint32_t r = 0; r < ranks; ++r) {
    ModelSpec own = spec;
    divide(own, {r, ranks});
    plans.push_back(plan_memory(file, own, options, *backend));
    row_bytes = make_kv_layout(kv_shapes(own, options.kv_formats)).bytes_per_token();
  }
  const double read_bytes = bytes_of_token(file, spec) / ranks;
  const double read_gb_s =
      backend->make_yardstick({.seconds = seconds, .buffer_bytes = 0})->measure().read_gb_s;
  const GatherCost cost = gather_cost(spec, ranks);
  const auto speed = [&](const Network& network) {
    const double exchange =
        cost.gathers * network.seconds + (cost.bytes + cost.logit_bytes) / network.bytes_s;
    return Speed{exchange, exchange + read_bytes / (read_gb_s * 1e9)};
  };
  if (json) {
    OrderedJson memory = OrderedJson::array(), networks = OrderedJson::array();
    for (const MemoryPlan& plan : plans)
      memory.push_back(
          {{"weight_bytes", plan.weights}, {"kv_bytes", plan.kv}, {"scratch_bytes", plan.scratch}});
    for (const Network& network : kNetworks)
      networks.push_back({{"name", network.name},
                          {"message_us", network.seconds * 1e6},
                          {"bytes_s", network.bytes_s},
                          {"exchange_ms", speed(network).exchange * 1e3},
                          {"most_tokens_s", 1 / speed(network).token}});
    const OrderedJson object = {{"path", file.path()},
                                {"ranks", ranks},
                                {"context", spec.context},
                                {"kv", {{"format", kv}, {"bytes_per_token", row_bytes}}},
                                {"memory", memory},
                                {"gathers", cost.gathers},
                                {"received_bytes_per_token", cost.bytes},
                                {"received_bytes_per_logits", cost.logit_bytes},
                                {"read_gb_s", read_gb_s},
                                {"networks", networks}};
    std::cout << object.dump(2, ' ', false, OrderedJson::error_handler_t::replace) << "\n";
    return;
  }
  fmt::print("{}, divided among {} ranks\n", file.path(), ranks);
  for (uint32_t r = 0; r < ranks; ++r)
    fmt::print("  rank {}        weights {}, KV cache {} for {} tokens in {}, scratch {}: {}\n", r,
               human_bytes(plans[r].weights), human_bytes(plans[r].kv), spec.context, kv,
               human_bytes(plans[r].scratch), human_bytes(plans[r].total()));
  fmt::print("  KV cache      {} per token on each\n", human_bytes(row_bytes));
  fmt::print("  network       {} gathers for a step; a token receives {}, its logits {} (rank 0)\n",
             cost.gathers, human_bytes(size_t(cost.bytes)), human_bytes(size_t(cost.logit_bytes)));
  fmt::print("  weights       {} read for a token; this machine reads {:.1f} GB/s: {:.2f} ms\n\n",
             human_bytes(size_t(read_bytes)), read_gb_s, read_bytes / read_gb_s / 1e6);
  fmt::print("  {:20} {:>16} {:>20}\n", "network", "exchange, ms", "tokens/s at most");
  for (const Network& network : kNetworks)
    fmt::print("  {:20} {:>16.3f} {:>20.1f}\n", network.words, speed(network).exchange * 1e3,
               1 / speed(network).token);
  fmt::print("\nOne sequence, a short context. A gather is one message (3 to 50 µs) and its bytes.\n");
}

}  // namespace quire::cli
