#include "cli/kv_event_flags.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cluster/socket_address.h"

namespace quire::cli {

void KvEventFlags::add_to(CLI::App& command) {
  command.add_option("--kv-events", options_.address,
                     "where routers hear which blocks are cached, as vLLM tells it over ZeroMQ, e.g. "
                     "tcp://127.0.0.1:5557; the tokens of prompts and answers are in it");
  command.add_option("--kv-events-replay", options_.replay_address,
                     "where they ask for events that they missed, e.g. tcp://127.0.0.1:5558");
  command.add_option("--kv-events-topic", options_.topic, "the topic of these events (none unless given)");
  command.add_flag("--kv-events-anyone", anyone_,
                   "these addresses may be such as other machines reach: whoever does reads along");
}

void KvEventFlags::check() const {
  if (options_.address.empty()) {
    if (!options_.replay_address.empty() || !options_.topic.empty() || anyone_)
      wrong_usage("--kv-events-replay, --kv-events-topic and --kv-events-anyone need --kv-events ADDRESS");
    return;
  }
  for (const std::string& address : {options_.address, options_.replay_address}) {
    if (address.empty() || reach_of(address) == Reach::this_machine || anyone_) continue;
    throw Error(
        "{} can be reached from other machines, and events hold the tokens of prompts and answers, for which "
        "no key is "
        "asked; --kv-events-anyone if whoever is there may read them",
        address);
  }
}

std::unique_ptr<KvEventPublisher> KvEventFlags::publish(Engine& engine) const {
  if (options_.address.empty()) return nullptr;
  auto publisher = std::make_unique<KvEventPublisher>(options_, engine.kv().node_tokens());
  engine.tell(&publisher->listener());
  return publisher;
}

std::string KvEventFlags::describe(const KvEventPublisher& publisher, const ServiceOptions& service) const {
  std::string text = fmt::format("KV events at {}", publisher.address());
  if (!publisher.replay_address().empty())
    text += fmt::format(", those that were missed at {}", publisher.replay_address());
  text += fmt::format(": the tokens of prompts and answers, for {}\n",
                      anyone_ ? "anybody who reaches this address" : "every program of this machine");
  if (!service.api_keys.empty() && !service.share_prefixes)
    text +=
        "  nothing is told there: with API keys a prompt is its key's own, unless --share-prefixes is "
        "given\n";
  return text;
}

}  // namespace quire::cli
