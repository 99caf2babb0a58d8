#include "server/metrics.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace quire {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

const Buckets kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                          1,     2.5,    5,     10,   25,    60,   150, 600};
const Buckets kGaps = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075,
                       0.1,    0.15,  0.2,    0.3,   0.5,  1,    2.5,  10};

// One metric under one name or two.
template <class Metric>
class Twin {
 public:
  void add(Metric& metric) { metrics_.push_back(&metric); }
  template <class... Args>
  void observe(Args... args) {
    for (Metric* m : metrics_) m->Observe(args...);
  }
  void set(double value) {
    for (Metric* m : metrics_) m->Set(value);
  }
  void increase(double by) {
    for (Metric* m : metrics_) m->Increment(by);
  }
  // For counters that somebody else counts.
  void raise_to(double value) {
    for (Metric* m : metrics_) m->Increment(std::max(0.0, value - m->Value()));
  }

 private:
  std::vector<Metric*> metrics_;
};

}  // namespace

struct Metrics::State {
  State(const std::string& model, Names names) : model(model), with_vllm(names == Names::own_and_vllm) {}

  void show(const EngineFigures& engine);
  void show(const grammar::GrammarFigures& grammars);

  std::string model;
  bool with_vllm;
  std::mutex mutex, telling;
  EngineFigures figures;  // the last that were seen
  prometheus::Registry registry;
  Twin<Histogram> ttft, gap, queue, prefill, decode, e2e;
  Twin<Gauge> running, waiting, kv_usage;
  Twin<Counter> prompt_tokens, answer_tokens, cached_tokens, queried_tokens, preemptions, drafted, accepted;
  Counter *evictions = nullptr, *restored = nullptr, *host_tokens = nullptr, *disk_tokens = nullptr,
          *forgotten_tokens = nullptr, *cancelled = nullptr, *steps = nullptr;
  Gauge *kv_cached = nullptr, *kv_unused = nullptr, *bandwidth = nullptr, *arithmetic = nullptr,
        *connections = nullptr;
  Counter *host_stored = nullptr, *host_stored_bytes = nullptr, *host_loaded = nullptr,
          *host_loaded_bytes = nullptr, *host_kept = nullptr, *host_dropped = nullptr;
  Gauge *host_used = nullptr, *host_rate = nullptr;
  Counter *disk_written = nullptr, *disk_written_bytes = nullptr, *disk_read = nullptr,
          *disk_read_bytes = nullptr, *disk_dropped = nullptr, *disk_failed = nullptr;
  Gauge* disk_used = nullptr;
  Counter *remote_tokens = nullptr, *remote_hits = nullptr, *remote_hit_bytes = nullptr,
          *remote_misses = nullptr, *remote_sent = nullptr, *remote_sent_bytes = nullptr,
          *remote_there = nullptr, *remote_dropped = nullptr, *remote_refused = nullptr,
          *remote_failures = nullptr;
  Gauge *remote_up = nullptr, *remote_rate = nullptr, *remote_round_trip = nullptr, *remote_queued = nullptr;
  Gauge *grammar_bytes = nullptr, *grammar_limit = nullptr, *grammars_held = nullptr;
  Counter *grammars_compiled = nullptr, *grammars_forgotten = nullptr, *grammars_refused = nullptr;
  const KvEventPublisher* events = nullptr;  // null: there is none, and the next are
  Counter *event_batches = nullptr, *events_told = nullptr, *events_dropped = nullptr;
  prometheus::Family<Gauge>*device_memory = nullptr, *vllm_cache = nullptr;
  prometheus::Family<Counter>*finished = nullptr, *refused = nullptr, *vllm_finished = nullptr,
  *remote_faults = nullptr;

  Histogram& histogram(const std::string& name, const std::string& help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({{"model_name", model}},
                                                                                     buckets);
  }
  Gauge& gauge(const std::string& name, const std::string& help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({{"model_name", model}});
  }
  Counter& counter(const std::string& name, const std::string& help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({{"model_name", model}});
  }
  void add(Twin<Histogram>& twin, const char* own, const char* vllm, const char* help,
           const Buckets& buckets) {
    twin.add(histogram(std::string("quire_") + own, help, buckets));
    if (with_vllm) twin.add(histogram(std::string("vllm:") + vllm, help, buckets));
  }
  void add(Twin<Gauge>& twin, const char* own, const char* vllm, const char* help) {
    twin.add(gauge(std::string("quire_") + own, help));
    if (with_vllm) twin.add(gauge(std::string("vllm:") + vllm, help));
  }
  void add(Twin<Counter>& twin, const char* own, const char* vllm, const char* help) {
    twin.add(counter(std::string("quire_") + own, help));
    if (with_vllm && vllm != nullptr) twin.add(counter(std::string("vllm:") + vllm, help));
  }
};

Metrics::Metrics(const std::string& model, Names names) : state_(std::make_unique<State>(model, names)) {
  State& s = *state_;
  s.add(s.ttft, "time_to_first_token_seconds", "time_to_first_token_seconds",
        "From the request to its first token.", kSeconds);
  s.add(s.gap, "inter_token_latency_seconds", "inter_token_latency_seconds",
        "Between two tokens of an answer.", kGaps);
  s.add(s.queue, "request_queue_time_seconds", "request_queue_time_seconds",
        "Until a request's first token is computed.", kSeconds);
  s.add(s.prefill, "request_prefill_time_seconds", "request_prefill_time_seconds",
        "From there to its first answered token.", kSeconds);
  s.add(s.decode, "request_decode_time_seconds", "request_decode_time_seconds",
        "From the first answered token to the last.", kSeconds);
  s.add(s.e2e, "e2e_request_latency_seconds", "e2e_request_latency_seconds",
        "From the request to its last token.", kSeconds);
  s.add(s.running, "requests_running", "num_requests_running", "Sequences that are being computed.");
  s.add(s.waiting, "requests_waiting", "num_requests_waiting", "Sequences that wait for room.");
  s.add(s.kv_usage, "kv_usage_ratio", "kv_cache_usage_perc",
        "Share of the KV pages that sequences hold, 0 to 1.");
  s.add(s.prompt_tokens, "prompt_tokens_total", "prompt_tokens_total", "Tokens of prompts.");
  s.add(s.answer_tokens, "answer_tokens_total", "generation_tokens_total", "Tokens of answers.");
  s.add(s.cached_tokens, "cached_prompt_tokens_total", "prefix_cache_hits_total",
        "Tokens of prompts that were in the cache.");
  s.add(s.queried_tokens, "looked_up_prompt_tokens_total", "prefix_cache_queries_total",
        "Tokens of prompts that were looked up.");
  s.add(s.preemptions, "preemptions_total", "num_preemptions_total",
        "Sequences that gave up their pages to others.");
  s.add(s.drafted, "draft_tokens_total", "spec_decode_num_draft_tokens_total",
        "Tokens that a drafter guessed.");
  s.add(s.accepted, "draft_tokens_accepted_total", "spec_decode_num_accepted_tokens_total",
        "Guesses that were right.");
  s.evictions = &s.counter("quire_kv_evicted_pages_total", "Cached pages whose memory was needed.");
  s.grammar_bytes = &s.gauge("quire_grammar_bytes",
                             "Memory of all grammars that answers keep to, and what was found out of them.");
  s.grammar_limit = &s.gauge("quire_grammar_limit_bytes", "What they may take together.");
  s.grammars_held = &s.gauge("quire_grammars", "Grammars in memory.");
  s.grammars_compiled = &s.counter("quire_grammars_compiled_total", "Grammars that were compiled.");
  s.grammars_forgotten =
      &s.counter("quire_grammars_forgotten_total",
                 "How often a grammar forgot what it had found out, because others needed the memory.");
  s.grammars_refused =
      &s.counter("quire_grammars_refused_total", "Grammars that found no memory beside those in use.");
  s.restored = &s.counter("quire_kv_restored_pages_total", "Pages whose contents came from a snapshot.");
  s.host_tokens =
      &s.counter("quire_host_prompt_tokens_total",
                 "Tokens of prompts that were in the cache because they came back from the host's memory.");
  s.host_stored = &s.counter("quire_kv_host_stored_pages_total",
                             "Pages that were copied from the device to the host's memory.");
  s.host_stored_bytes = &s.counter("quire_kv_host_stored_bytes_total", "Bytes of them.");
  s.host_loaded =
      &s.counter("quire_kv_host_loaded_pages_total", "Pages that came back from the host's memory.");
  s.host_loaded_bytes = &s.counter("quire_kv_host_loaded_bytes_total", "Bytes of them.");
  s.host_kept = &s.counter("quire_kv_host_kept_pages_total",
                           "Pages that left the device and were in the host's memory already.");
  s.host_dropped = &s.counter("quire_kv_host_dropped_pages_total",
                              "Evicted pages that the host's memory had no place for at that moment.");
  s.host_used =
      &s.gauge("quire_kv_host_used_ratio", "Share of the host tier's pages that are in use, 0 to 1.");
  s.host_rate = &s.gauge("quire_kv_host_bytes_per_second", "How fast pages were moved lately.");
  s.forgotten_tokens =
      &s.counter("quire_forgotten_tokens_total",
                 "Tokens of prompts and answers whose rows were let go to keep to a budget.");
  s.disk_tokens =
      &s.counter("quire_disk_prompt_tokens_total",
                 "Tokens of prompts that were in the cache because they came back from the disk.");
  s.disk_written = &s.counter("quire_kv_disk_written_pages_total", "Evicted pages that the disk took.");
  s.disk_written_bytes = &s.counter("quire_kv_disk_written_bytes_total", "Bytes of them.");
  s.disk_read = &s.counter("quire_kv_disk_read_pages_total", "Pages that were read back from the disk.");
  s.disk_read_bytes = &s.counter("quire_kv_disk_read_bytes_total", "Bytes of them.");
  s.disk_dropped = &s.counter("quire_kv_disk_dropped_pages_total",
                              "Evicted pages that were not written because the disk was too slow.");
  s.disk_failed = &s.counter("quire_kv_disk_failed_pages_total",
                             "Pages that could not be written, or not be read as they were written.");
  s.disk_used = &s.gauge("quire_kv_disk_used_ratio", "Share of the disk's pages that are in use, 0 to 1.");
  s.remote_tokens =
      &s.counter("quire_remote_prompt_tokens_total",
                 "Tokens of prompts that were in the cache because they came from the shared store.");
  s.remote_hits = &s.counter("quire_kv_remote_hit_pages_total", "Pages that came from the shared store.");
  s.remote_hit_bytes = &s.counter("quire_kv_remote_hit_bytes_total", "Bytes of them.");
  s.remote_misses = &s.counter(
      "quire_kv_remote_missed_pages_total",
      "Pages that were fetched from the shared store and were not there, or were not what they should be.");
  s.remote_sent = &s.counter("quire_kv_remote_sent_pages_total", "Pages that the shared store took.");
  s.remote_sent_bytes = &s.counter("quire_kv_remote_sent_bytes_total", "Bytes of them.");
  s.remote_there = &s.counter("quire_kv_remote_there_pages_total", "Pages that it had already.");
  s.remote_dropped =
      &s.counter("quire_kv_remote_dropped_pages_total",
                 "Pages that were not sent because the shared store was too slow or did not answer.");
  s.remote_refused = &s.counter(
      "quire_kv_remote_refused_pages_total",
      "Pages that the shared store did not take, because it is full or for another reason of its own.");
  s.remote_failures =
      &s.counter("quire_kv_remote_failures_total",
                 "Times that the shared store did not answer, not in time or not as it should.");
  s.remote_up = &s.gauge("quire_kv_remote_up", "1 while the shared store answers, else 0.");
  s.remote_rate =
      &s.gauge("quire_kv_remote_bytes_per_second", "How fast pages came from the shared store lately.");
  s.remote_round_trip = &s.gauge("quire_kv_remote_round_trip_seconds",
                                 "How long the shared store took for an answer without pages lately.");
  s.remote_queued = &s.gauge("quire_kv_remote_queued_bytes", "Bytes of pages that wait to be sent there.");
  s.remote_faults =
      &prometheus::BuildCounter()
           .Name("quire_kv_remote_wrong_pages_total")
           .Help(
               "Pages of the shared store that were not what they should be: of another length, of "
               "another model, of other tokens, without the tag of this server's key.")
           .Register(s.registry);
  s.cancelled =
      &s.counter("quire_requests_cancelled_total", "Answers that a client or a shutdown ended early.");
  s.steps = &s.counter("quire_steps_total", "Steps of the engine.");
  s.kv_cached = &s.gauge("quire_kv_cached_ratio",
                         "Share of the KV pages that nobody holds and prompts can find, 0 to 1.");
  s.kv_unused = &s.gauge("quire_kv_unused_ratio",
                         "Share of the held KV bytes in which nothing is written yet, 0 to 1.");
  s.bandwidth = &s.gauge("quire_bandwidth_ratio", "Share of the machine's read bandwidth in use, 0 to 1.");
  s.arithmetic = &s.gauge("quire_arithmetic_ratio", "Share of the machine's arithmetic in use, 0 to 1.");
  s.connections = &s.gauge("quire_connections", "Open connections.");
  s.device_memory =
      &prometheus::BuildGauge()
           .Name("quire_device_memory_bytes")
           .Help("The memory of the device, by what is in it; other: kernels, the driver, other programs.")
           .Register(s.registry);
  s.finished = &prometheus::BuildCounter()
                    .Name("quire_requests_finished_total")
                    .Help("Answers, by why they ended.")
                    .Register(s.registry);
  s.refused = &prometheus::BuildCounter()
                   .Name("quire_requests_refused_total")
                   .Help("Requests that were refused, by status.")
                   .Register(s.registry);
  if (s.with_vllm)
    s.vllm_cache = &prometheus::BuildGauge()
                        .Name("vllm:cache_config_info")
                        .Help("The KV cache: tokens of a page, and pages.")
                        .Register(s.registry);
  if (s.with_vllm)
    s.vllm_finished = &prometheus::BuildCounter()
                           .Name("vllm:request_success_total")
                           .Help("Answers, by why they ended.")
                           .Register(s.registry);
}

Metrics::~Metrics() = default;

void Metrics::finished(const Answer& answer, double e2e_ms) {
  State& s = *state_;
  const RequestAccount& account = answer.account;
  double decode_ms = 0;
  for (const RequestAccount::Gap& gap : account.gaps) {
    s.gap.observe(gap.ms / 1000);
    decode_ms += gap.ms;
  }
  if (!answer.tokens.empty()) s.ttft.observe(answer.timings.ttft_ms / 1000);
  s.queue.observe(account.queue_ms / 1000);
  s.prefill.observe(std::max(0.0, answer.timings.ttft_ms - account.queue_ms) / 1000);
  s.decode.observe(decode_ms / 1000);
  s.e2e.observe(e2e_ms / 1000);
  s.prompt_tokens.increase(answer.prompt_tokens);
  s.answer_tokens.increase(double(answer.tokens.size()));
  s.cached_tokens.increase(account.cached_tokens);
  s.host_tokens->Increment(account.host_tokens);
  s.disk_tokens->Increment(account.disk_tokens);
  s.remote_tokens->Increment(account.remote_tokens);
  s.forgotten_tokens->Increment(account.forgotten_tokens);
  s.queried_tokens.increase(answer.prompt_tokens);
  s.drafted.increase(account.drafted);
  s.accepted.increase(account.accepted);
  const std::string reason(name(answer.finish_reason));
  s.finished->Add({{"model_name", s.model}, {"reason", reason}}).Increment();
  if (s.vllm_finished != nullptr)
    s.vllm_finished->Add({{"model_name", s.model}, {"finished_reason", reason}}).Increment();
}

void Metrics::cancelled() {
  state_->cancelled->Increment();
}

void Metrics::refused(int status) {
  state_->refused->Add({{"model_name", state_->model}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::follow(const KvEventPublisher& events) {
  State& s = *state_;
  s.events = &events;
  s.event_batches =
      &s.counter("quire_kv_event_batches_total", "Batches of events of the cache that were published.");
  s.events_told = &s.counter("quire_kv_events_total", "Events of the cache in them.");
  s.events_dropped =
      &s.counter("quire_kv_events_dropped_total",
                 "Events of the cache that found no room; readers were told that nothing is there.");
}

void Metrics::watch(const EngineFigures& figures) {
  const std::lock_guard lock(state_->mutex);
  state_->figures = figures;
}

void Metrics::State::show(const EngineFigures& engine) {
  running.set(engine.running);
  waiting.set(engine.waiting);
  preemptions.raise_to(double(engine.preemptions));
  const double pages = double(std::max<uint64_t>(1, engine.pages));
  kv_usage.set(double(engine.held_pages) / pages);
  kv_cached->Set(double(engine.cached_pages) / pages);
  kv_unused->Set(engine.unused_share);
  if (vllm_cache != nullptr && engine.pages > 0)  // numbers that stay, as labels
    vllm_cache
        ->Add({{"model_name", model},
               {"block_size", std::to_string(engine.page_tokens)},
               {"num_gpu_blocks", std::to_string(engine.pages)}})
        .Set(1);
  const auto raise = [](Counter* counter, uint64_t to) { counter->Increment(double(to) - counter->Value()); };
  raise(evictions, engine.evicted_pages);
  raise(restored, engine.restored_pages);
  raise(steps, engine.steps);
  if (events != nullptr) {
    const KvEventPublisher::Stats stats = events->stats();
    raise(event_batches, stats.batches);
    raise(events_told, stats.events);
    raise(events_dropped, stats.dropped);
  }
  if (engine.device) {
    const auto set = [&](const char* kind, size_t bytes) {
      device_memory->Add({{"model_name", model}, {"kind", kind}}).Set(double(bytes));
    };
    set("weights", engine.device->weights);
    set("kv", engine.device->kv);
    set("workspace", engine.device->workspace);
    set("other", engine.device->other());
    set("free", engine.device->free);
  }
  if (engine.host) {
    raise(host_stored, engine.host->stored_pages);
    raise(host_stored_bytes, engine.host->stored_bytes);
    raise(host_loaded, engine.host->loaded_pages);
    raise(host_loaded_bytes, engine.host->loaded_bytes);
    raise(host_kept, engine.host->kept_pages);
    raise(host_dropped, engine.host->dropped_pages);
    host_used->Set(double(engine.host->used_bytes) / double(engine.host->capacity_bytes));
    host_rate->Set(engine.host->bytes_per_s);
  }
  if (engine.remote) {
    const RemoteTier::Stats& remote = *engine.remote;
    raise(remote_hits, remote.hit_pages);
    raise(remote_hit_bytes, remote.hit_bytes);
    raise(remote_misses, remote.missed_pages);
    raise(remote_sent, remote.sent_pages);
    raise(remote_sent_bytes, remote.sent_bytes);
    raise(remote_there, remote.there_pages);
    raise(remote_dropped, remote.dropped_pages);
    raise(remote_refused, remote.refused_pages);
    raise(remote_failures, remote.failures);
    for (size_t fault = 1; fault < kPageFaults; ++fault)
      raise(&remote_faults->Add({{"model_name", model}, {"fault", std::string(name(PageFault(fault)))}}),
            remote.faults[fault]);
    remote_up->Set(remote.readable && remote.writable ? 1 : 0);
    remote_rate->Set(remote.read_bytes_per_s);
    remote_round_trip->Set(remote.round_trip_s);
    remote_queued->Set(double(remote.queued_bytes));
  }
  if (!engine.disk) return;
  raise(disk_written, engine.disk->written_pages);
  raise(disk_written_bytes, engine.disk->written_bytes);
  raise(disk_read, engine.disk->read_pages);
  raise(disk_read_bytes, engine.disk->read_bytes);
  raise(disk_dropped, engine.disk->dropped_pages);
  raise(disk_failed, engine.disk->failed_writes + engine.disk->failed_reads);
  disk_used->Set(double(engine.disk->used_bytes) / double(engine.disk->capacity_bytes));
}

void Metrics::State::show(const grammar::GrammarFigures& grammars) {
  grammar_bytes->Set(double(grammars.bytes));
  grammar_limit->Set(double(grammars.most_bytes));
  grammars_held->Set(grammars.grammars);
  const auto raise = [](Counter* counter, uint64_t to) { counter->Increment(double(to) - counter->Value()); };
  raise(grammars_compiled, grammars.compiled);
  raise(grammars_forgotten, grammars.forgotten);
  raise(grammars_refused, grammars.refused);
}

std::string Metrics::text(const RateMeter::Rates& rates, uint32_t connections,
                          const grammar::GrammarFigures& grammars) {
  State& s = *state_;
  const std::lock_guard telling(s.telling);  // counters are raised to what was seen last, by one at a time
  EngineFigures figures;
  {
    const std::lock_guard lock(s.mutex);
    figures = s.figures;
  }
  s.show(figures);
  s.bandwidth->Set(rates.bandwidth_share);
  s.arithmetic->Set(rates.arithmetic_share);
  s.connections->Set(connections);
  s.show(grammars);
  return prometheus::TextSerializer().Serialize(s.registry.Collect());
}

}  // namespace quire
