#include <algorithm>
#include <iostream>

#include <fmt/format.h>
#include <sys/resource.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "chat/chat_format.h"
#include "cli/api_keys.h"
#include "cli/budget_flags.h"
#include "cli/commands.h"
#include "cli/evaluator_choice.h"
#include "cli/kv_choice.h"
#include "cli/kv_curve.h"
#include "cli/kv_event_flags.h"
#include "cli/kv_plan.h"
#include "cli/kv_remote_flags.h"
#include "cli/model_name.h"
#include "cli/model_options.h"
#include "cli/pruning_flags.h"
#include "cli/rank_choice.h"
#include "engine/model_grammars.h"
#include "server/server.h"

namespace quire::cli {
namespace {

// The host tier, unless somebody says otherwise.
constexpr size_t kHostShare = 4;        // of the free host memory: one of so many parts
constexpr size_t kHostTimesDevice = 4;  // at most so many times the device's pages
constexpr size_t kHostMost =
    size_t(16) << 30;  // and so much: pinning takes some 60 ms a GiB, and everybody waits for it

struct ServeCommand {
  ModelOptions model;
  PruningFlags pruning;
  BudgetFlags budget;
  bool kv_anyway = false;
  ServerOptions server;
  std::string model_name;
  std::string max_body;
  std::string max_in_flight;
  std::string response_memory, grammar_memory;
  std::string kv_host;
  std::string kv_disk;
  std::string metrics_names;
  std::string pooling;
  uint32_t max_queue = 256;
  double itl_target_ms = 250;
  uint32_t idle_seconds = 120;
  std::string api_key_file;
  bool no_inspection = false;
  std::string max_snapshot_bytes;
  std::string record_bytes;
  KvEventFlags kv_events;
  KvRemoteFlags kv_remote;

  std::string served_name() const { return model_name.empty() ? cli::served_name(model.model) : model_name; }

  // A short look at what the machine can do, so that the server can say how much of it is in use.
  static MachineLimits look_at_machine(const Backend& backend) {
    const MachineRates rates =
        backend.make_yardstick({.seconds = 0.05, .buffer_bytes = size_t(64) << 20})->measure();
    return {rates.read_gb_s, rates.int8_gops, rates.f32_gflops, rates.bf16_gflops, backend.traits().threads};
  }

  // A connection is an open file, and many systems allow a program 1024 of them unless it asks for more.
  void make_room_for_connections() {
    constexpr rlim_t kOwnFiles = 160;  // and the connections that are turned away
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    const rlim_t wanted = server.http.connections + kOwnFiles;
    if (limit.rlim_cur < wanted) {
      limit.rlim_cur = std::min(limit.rlim_max, wanted);
      ::setrlimit(RLIMIT_NOFILE, &limit);
      ::getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= wanted) return;
    server.http.connections = uint32_t(limit.rlim_cur - std::min(limit.rlim_cur / 2, kOwnFiles));
    fmt::print(stderr, "at most {} connections: the system allows {} open files\n", server.http.connections,
               limit.rlim_cur);
  }

  // What grammars may take: an eighth of a --memory that is small.
  size_t grammar_bytes() const {
    if (!grammar_memory.empty()) return parse_size(grammar_memory);
    constexpr size_t kUsual = grammar::GrammarBudget::kUsualBytes;
    return model.memory.empty() ? kUsual : std::min(kUsual, parse_size(model.memory) / 8);
  }

  void operator()() {
    if (has_followed(model)) return;
    const std::pair<const char*, bool> given[] = {{"--kv-keep", pruning.options() || pruning.is_auto()},
                                                  {"--kv-budget", !budget.budget.empty()},
                                                  {"--kv-dir", !server.kv_folder.empty()},
                                                  {"--kv-remote", kv_remote.is_given()}};
    refuse_with_ranks(model, given);
    for (const std::string& key : server.service.api_keys) {
      if (key.empty()) wrong_usage("--api-key must not be empty");
    }
    server.service.api_keys = gather_api_keys(server.service.api_keys, api_key_file);
    server.service.inspection = !no_inspection;
    if (!max_snapshot_bytes.empty()) server.snapshots.bytes = parse_size(max_snapshot_bytes);
    if (!max_body.empty()) server.http.body_bytes = parse_size(max_body);
    if (!response_memory.empty())
      server.service.responses.bytes = response_memory == "0" ? 0 : parse_size(response_memory);
    if (!max_in_flight.empty()) {
      server.http.request_bytes_in_flight = server.http.reply_bytes_in_flight = parse_size(max_in_flight);
      if (server.http.request_bytes_in_flight == 0) wrong_usage("--max-bytes-in-flight must not be 0");
    }
    if (!record_bytes.empty()) server.record.most_bytes = parse_size(record_bytes);
    if (!record_bytes.empty() && server.record.path.empty())
      wrong_usage("--record-bytes needs --record FILE");
    server.record.on_end = [](const std::string& why) { fmt::print(stderr, "{}\n", why); };
    server.model_path = model.model;
    keep_large_blocks_apart();
    server.http.idle_time = std::chrono::seconds(idle_seconds);
    make_room_for_connections();
    if (!server.kv_restore.empty() && server.kv_folder.empty())
      wrong_usage("--kv-restore needs --kv-dir: the folder that the snapshot is in");
    if (!server.kv_restore.empty() && !SnapshotFolder::is_name(server.kv_restore))
      wrong_usage("--kv-restore wants the name of a snapshot in --kv-dir, not '{}'", server.kv_restore);
    if (!kv_disk.empty() && server.kv_folder.empty())
      wrong_usage("--kv-disk needs --kv-dir: the folder in which the file is made");
    const size_t disk_bytes = kv_disk.empty() ? 0 : parse_size(kv_disk);
    refuse_host_tier_if(model.device == "cpu" || (model.device == "auto" && usual_device() == "cpu"));
    if (metrics_names == "vllm") server.metric_names = Metrics::Names::own_and_vllm;

    if (!pooling.empty()) server.pooling = pooling_from_name(pooling);
    kv_events.check();
    kv_remote.check();
    server.pruning = pruning.options();
    server.budget = budget.options(budget.budget.empty() ? "snap" : pruning.policy, pruning.window);
    server.pins_system = budget.pins_system();
    if (server.budget && (server.pruning || pruning.is_auto()))
      wrong_usage("--kv-budget bounds the prompt too: leave --kv-keep out");
    const bool wants_heads = asks_evaluator(pruning_policy_from_name(pruning.policy));
    std::optional<KvCurve> curve;
    if (pruning.is_auto()) {
      curve = known_curve(model.path());
      if (model.kv.empty()) model.kv = smallest_format(*curve, pruning.wanted_answers());
    }
    if (server.pruning) model.prunes_with = server.pruning->policy;
    model.grammar_bytes = grammar_bytes();
    ModelOptions::Opened opened = model.open();
    opened.model->text().grammars->limit(model.grammar_bytes);
    const auto& format = opened.model->text().chat_template;
    if (format && !format->response_source().empty()) {
      if (const std::string problem = find_traits(*format).declared_problem; !problem.empty())
        fmt::print(stderr, "the model's response_template is not used: {}\n", problem);
    }
    opened.engine.itl_target_ms = itl_target_ms;
    if (const KvWarning warning = kv_warning(model.path(), model.kv); !warning.words.empty()) {
      if (warning.broken && !kv_anyway)
        throw Error("{}; choose another, --kv auto, or --kv-anyway", warning.words);
      fmt::print(stderr, "{}\n", warning.words);
    }
    opened.engine.host_bytes = host_bytes(opened);
    opened.engine.disk_bytes = disk_bytes;
    opened.engine.disk_folder = server.kv_folder;
    const LoadedModel& loaded = *opened.model;
    opened.engine.kv_identity = loaded.kv_identity();
    kv_remote.apply(opened.engine, server.service);
    server.service.limits.open_answers = model.max_sequences + max_queue;
    server.evaluator = evaluator_heads(loaded, wants_heads);
    if (server.pruning) server.pruning->evaluator = server.evaluator;
    if (curve) {
      const auto chooser =
          std::make_shared<const KeepChooser>(make_chooser(*curve, loaded, model.path(), model.kv));
      server.choose_kept = [chooser, target = pruning.wanted_answers()](std::span<const TokenId> prompt) {
        return chooser->choose(prompt, target).pruning;
      };
    }
    server.service.version = QUIRE_VERSION;
    server.service.kv_format = model.kv;
    server.service.local_names_only = is_local() && server.service.api_keys.empty();
    server.service.fingerprint = fmt::format("quire-{}-{}-{}", QUIRE_VERSION, loaded.kernels(), model.kv);
    const MachineLimits limits = look_at_machine(loaded.backend());
    std::unique_ptr<KvEventPublisher> publisher;  // outlives whatever the engine is in
    std::unique_ptr<Engine> engine = opened.make_engine();
    std::string room = describe_room(*engine, opened.engine, loaded.spec());
    publisher = kv_events.publish(*engine);
    server.kv_events = publisher.get();
    room += kv_remote.describe(*engine, server.service);
    if (publisher) room += kv_events.describe(*publisher, server.service);
    Server service(loaded, std::move(engine), served_name(), limits, server);
    if (!service.restored().empty()) room += service.restored() + "\n";
    if (!server.record.path.empty())
      room += fmt::format(
          "recording to {}, at most {}: the prompts and answers of everybody who asks, as tokens, and how "
          "they "
          "were drawn; no API keys, no names\n",
          server.record.path, human_bytes(server.record.most_bytes));
    service.heed_signals();  // whoever reads the next line may end it at once
    fmt::print(stderr, "{} at http://{}:{} (the page; the API under /v1)\n{}", served_name(), server.host,
               service.port(), room);
    if (server.service.api_keys.empty() && server.host != "127.0.0.1" && server.host != "localhost" &&
        server.host != "::1")
      fmt::print(stderr, "anybody who reaches this address may use it: --api-key-file asks for a key\n");
    std::fflush(stderr);
    service.run_to_the_end();
    if (!service.lost().empty()) throw Error("{}", service.lost());
    fmt::print(stderr, "stopped\n{}", describe_traffic(model));
  }

  // Those that requests may ask: found now if they will surely be wanted, else those that are kept, if there are any.
  EvaluatorHeads evaluator_heads(const LoadedModel& loaded, bool wanted) const {
    if (wanted) return choose_heads(loaded, model.path());
    try {
      const std::optional<FoundHeads> kept = kept_heads(loaded, model.path());
      return kept ? kept->best : EvaluatorHeads{};
    } catch (const Error& error) {
      fmt::print(stderr, "requests cannot have --kv-policy evaluator: {}\n", error.what());
      return {};
    }
  }

  bool is_local() const {
    return server.host == "127.0.0.1" || server.host == "localhost" || server.host == "::1";
  }

  size_t asked_host_bytes() const { return kv_host.empty() || kv_host == "0" ? 0 : parse_size(kv_host); }
  void refuse_host_tier_if(bool on_cpu) const {
    if (on_cpu && asked_host_bytes() > 0)
      wrong_usage(
          "--kv-host is for pages that leave a device's memory; with --device cpu they are in the host's "
          "already, and --kv-memory gives them more of it");
  }
  // Of the host's memory, for pages that leave a device's.
  size_t host_bytes(const ModelOptions::Opened& opened) const {
    const bool on_cpu = opened.model->backend().traits().memory == MemoryKind::host;
    refuse_host_tier_if(on_cpu);
    if (on_cpu || !kv_host.empty()) return asked_host_bytes();
    const KvLayout layout =
        make_kv_layout(kv_shapes(opened.model->spec(), opened.engine.kv_formats), opened.engine.page_tokens);
    const size_t bytes =
        std::min({available_memory() / kHostShare, kHostTimesDevice * opened.engine.kv_bytes, kHostMost});
    return bytes < TierSlots::node_bytes(layout) ? 0 : bytes;
  }

  std::string describe_room(const Engine& engine, const EngineOptions& options, const ModelSpec& spec) const {
    const KvCache::Stats stats = engine.kv().stats();
    const KvLayout& layout = engine.kv().layout();
    const size_t per_token =
        layout.bytes_per_token();  // 0: recurrent layers alone, which keep states and no rows
    const auto room = [&](size_t bytes) {
      return per_token > 0 ? fmt::format("{} tokens", bytes / per_token)
                           : counted(bytes / layout.state_bytes(), "state");
    };
    std::string text = fmt::format("KV cache {}: {} of {}; up to {} at once, a context of {} tokens each\n",
                                   human_bytes(stats.capacity_bytes), room(stats.capacity_bytes),
                                   human_bytes(per_token > 0 ? per_token : layout.state_bytes()),
                                   counted(options.max_sequences, "answer"), engine.context());
    for (const KvPlanRow& row : kv_by_format(spec, model.kv, engine.context(), stats.capacity_bytes)) {
      text += fmt::format("  --kv {:11} {:>9} tokens, {:.1f} whole contexts{}\n", row.name, row.room.tokens,
                          row.room.sequences, row.chosen ? "  (this server)" : "");
    }
    if (engine.host() != nullptr) {
      const size_t bytes = engine.host()->stats().capacity_bytes;
      text += fmt::format("KV host tier {}{}: {} more{}\n",
                          engine.host()->memory_kind() == MemoryKind::pinned ? "pinned, " : "",
                          human_bytes(bytes), room(bytes),
                          kv_host.empty()
                              ? " (a quarter of the free host memory, at most 16 GiB and 4 times the KV "
                                "cache; --kv-host SIZE for another, 0 for none)"
                              : "");
    }
    if (engine.disk() != nullptr) {
      const size_t bytes = engine.disk()->stats().capacity_bytes;
      text +=
          fmt::format("KV disk {} in {}: {} more\n", human_bytes(bytes), options.disk_folder, room(bytes));
    }
    return text;
  }
};

}  // namespace

void add_serve(CLI::App& app) {
  auto command = std::make_shared<ServeCommand>();
  command->model.max_sequences = 16;
  CLI::App* serve =
      app.add_subcommand("serve", "an OpenAI-compatible server, with a page that shows the cache");
  command->model.add_to(*serve);
  command->model.add_draft_to(*serve);
  command->pruning.add_to(*serve);
  command->budget.add_to(*serve);
  serve->add_flag("--kv-anyway", command->kv_anyway,
                  "serve with a KV format although the meter found it to break the model");
  ServerOptions& server = command->server;
  serve->add_option("--host", server.host, "the address to listen on")->capture_default_str();
  serve->add_option("--port", server.port, "the port to listen on (0: any that is free)")
      ->capture_default_str();
  serve->add_option("--model-name", command->model_name, "the name that clients know the model by");
  serve
      ->add_option(
          "--api-key", server.service.api_keys,
          "a key that clients must send; may be given several times (also QUIRE_API_KEY). Whoever sees the "
          "machine's processes sees it: --api-key-file keeps keys out of sight")
      ->allow_extra_args(false);
  serve->add_option("--api-key-file", command->api_key_file,
                    "a file of such keys, one a line; lines that begin with # are comments");
  serve->add_flag(
      "--share-prefixes", server.service.share_prefixes,
      "keys share what they have cached; then each can find out whether, and how much of, a prompt "
      "that it guesses is cached for another: by cached_tokens, /kv/lookup and the time to the first "
      "token");
  serve->add_flag(
      "--no-inspection", command->no_inspection,
      "switch off what shows the cache and the requests: /kv, /kv/lookup, /requests and the page's "
      "live view");
  serve
      ->add_option("--max-priority", server.service.max_priority,
                   "highest priority that requests may ask for (default: 0 with keys, any without)")
      ->check(CLI::Range(-1000, 1000));
  serve->add_option("--max-pins", server.service.pins.pins, "most prefixes that a key may have pinned")
      ->capture_default_str();
  serve->add_option("--max-pinned-tokens", server.service.pins.tokens,
                    "most tokens that a key may have pinned (default: with keys an equal part of half the KV "
                    "cache, without any)");
  serve
      ->add_option("--max-pin-seconds", server.service.pins.most_seconds,
                   "how long a pin may last (default: a day with keys, without them for ever)")
      ->check(CLI::Range(1.0, 1e9));
  serve
      ->add_option("--cors", server.service.allowed_origins,
                   "a web page's origin that may use the server, or *; may be given several times")
      ->allow_extra_args(false);
  serve->add_option("--max-seqs", command->model.max_sequences, "most answers that are computed at once")
      ->capture_default_str()
      ->check(CLI::Range(2u, 4096u));
  serve
      ->add_option("--max-queue", command->max_queue,
                   "most answers that wait; more are told to try later (429)")
      ->capture_default_str();
  serve
      ->add_option("--itl-target", command->itl_target_ms,
                   "wanted ms between tokens: prompts take no more of a step than it allows (0: no limit)")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  serve
      ->add_option(
          "--keep-alive-seconds", server.service.limits.keep_alive_seconds,
          "after which a stream that has nothing to say yet sends a comment, so that proxies keep it")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1e6));
  serve
      ->add_option(
          "--pooling", command->pooling,
          "how texts become vectors (/v1/embeddings): last, mean or cls; rank: the model answers yes or "
          "no, as Qwen3-Reranker does, for /v1/rerank (default: what the model says, else last)")
      ->check(CLI::IsMember({"last", "mean", "cls", "rank"}));
  serve->add_option("--response-memory", command->response_memory,
                    "memory for responses of /v1/responses that can be asked for again or gone on from, e.g. "
                    "64M (the default); 0: none are kept");
  serve->add_option("--grammar-memory", command->grammar_memory,
                    "memory for the schemas and grammars that answers keep to, all together, e.g. 128M (the "
                    "default, and at most an eighth of --memory)");
  serve->add_option("--response-seconds", server.service.responses.seconds, "how long each of them is kept")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 1e8));
  serve->add_option("--max-connections", server.http.connections, "most open connections")
      ->capture_default_str();
  serve->add_option("--max-body", command->max_body, "largest request, e.g. 16M (the default)");
  serve->add_option(
      "--max-bytes-in-flight", command->max_in_flight,
      "most bytes of all requests together, and of all replies, e.g. 256M (the default); more are "
      "told to try later (503)");
  serve->add_option("--idle-seconds", command->idle_seconds, "how long an idle connection is kept")
      ->capture_default_str();
  serve
      ->add_option("--request-seconds", server.service.limits.request_seconds,
                   "most seconds that one request may take")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1e9));
  serve
      ->add_option("--grace-seconds", server.grace_seconds,
                   "what running answers get when the server is told to stop")
      ->capture_default_str();
  serve
      ->add_option("--drain-seconds", server.drain_seconds,
                   "after SIGTERM: how long requests are still taken, while /health says 503")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  serve->add_option("--metrics-names", command->metrics_names, "vllm: export metrics under vLLM's names too")
      ->check(CLI::IsMember({"vllm"}));
  serve->add_option("--kv-dir", server.kv_folder,
                    "the folder in which POST /kv/save keeps snapshots, and --kv-disk its file");
  serve->add_option(
      "--kv-host", command->kv_host,
      "host memory for pages that leave a GPU's and may come back, e.g. 32G (default: a quarter "
      "of what is free, at most 16 GiB and 4 times the KV cache; 0: none)");
  serve->add_option("--kv-disk", command->kv_disk,
                    "disk for pages that leave memory and may come back, e.g. 20G; needs --kv-dir");
  serve->add_option("--max-snapshots", server.snapshots.files, "most snapshots in --kv-dir")
      ->capture_default_str();
  serve->add_option("--max-snapshot-bytes", command->max_snapshot_bytes,
                    "most bytes of all snapshots in --kv-dir, e.g. 50G (no limit unless given)");
  serve->add_option(
      "--record", server.record.path,
      "a new file that keeps what is needed to compute every answer again (quire replay): prompts and "
      "answers as tokens, with log-probabilities and how they were drawn; never API keys or names. Only "
      "its owner may read it");
  serve->add_option("--record-bytes", command->record_bytes,
                    "most bytes of that file, e.g. 1G (256M unless given); then recording ends");
  command->kv_remote.add_to(*serve);
  command->kv_events.add_to(*serve);
  CLI::Option* restore =
      serve
          ->add_option("--kv-restore", server.kv_restore,
                       "begin with this snapshot of --kv-dir (the usual one if no name is given)")
          ->expected(0, 1);
  serve->callback([command, restore] {
    if (restore->count() > 0 && command->server.kv_restore.empty())
      command->server.kv_restore = SnapshotFolder::kUsualName;
    (*command)();
  });
}

}  // namespace quire::cli
