// What it costs the engine's thread to be looked at: the cache with 16,384 pages, and 64 sequences that stream.
//   view_bench MODEL.gguf
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>

#include "idle_backend.h"
#include "model/model_file.h"
#include "server/live_report.h"

namespace quire {
namespace {

constexpr uint32_t kPages = 16384, kRows = 4, kStreams = 64, kLooks = 50;

// Of this thread alone, whoever else the machine works for.
double processor_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) * 1e6 + double(time.tv_nsec) * 1e-3;
}

template <class Work>
double median_us(Work work) {
  std::vector<double> times;
  for (uint32_t i = 0; i < kLooks; ++i) {
    const double begin = processor_us();
    work();
    times.push_back(processor_us() - begin);
  }
  std::ranges::nth_element(times, times.begin() + kLooks / 2);
  return times[kLooks / 2];
}

// Requests of half of the pages have ended, the others stream.
void fill(Engine& engine, RequestBook& book, uint32_t vocab) {
  const uint32_t tokens = kPages * kRows / kStreams / 2;
  for (uint32_t s = 0; s < 2 * kStreams; ++s) {
    Request request;
    for (uint32_t p = 0; p < tokens - 8; ++p) request.prompt.push_back((s * 7919 + p * (s + 3)) % vocab);
    request.max_tokens = s < kStreams ? 8 : 1 << 20;
    request.ignore_end = true;
    const SequenceId id = engine.submit(request);
    RequestEntry entry;
    entry.id = "cmpl-0123456789abcdef0123456789abcdef" + std::to_string(s);
    entry.prompt = request.prompt;
    entry.submitted = Clock::now();
    book.add(id, std::move(entry));
    if (s + 1 == kStreams) {
      while (engine.step())
        ;
      for (auto& [ended, answer] : engine.take_answers())
        book.finish(ended, std::make_shared<const Answer>(std::move(answer)), Clock::now());
    }
  }
  for (int steps = 0; engine.load().running < kStreams || engine.running().back().answer_tokens() == 0;
       ++steps)
    engine.step();
}

void look(Engine& engine, uint32_t vocab) {
  RequestBook book(Clock::now());
  fill(engine, book, vocab);
  RateMeter meter({});
  const ReportFor report{.viewer = {}, .since = 0, .now = Clock::now()};
  const KvLook kv = look_at_kv(engine, book, 0);
  const RequestsLook requests = look_at_requests(engine, book, 0);
  const CacheView::Group& group = kv.cache.groups.front();
  std::printf("%zu pages in use (%u held), %u sequences\n", group.pages.size(), group.stats.held,
              engine.load().running);
  const double kv_us = median_us([&] { look_at_kv(engine, book, 0); });
  const double requests_us = median_us([&] { look_at_requests(engine, book, 0); });
  const double figures_us = median_us([&] { figures_of(engine); });
  std::printf("the engine's thread: /kv %.0f us, /requests %.0f us, /metrics %.1f us a step\n", kv_us,
              requests_us, figures_us);
  const double tree_us = median_us([&] { kv_report(kv, report); });
  const double text_us = median_us([&] { kv_report(kv, report).dump(); });
  std::printf("others: /kv %.0f us as a tree, %.0f us as text, /requests %.0f us as text\n", tree_us, text_us,
              median_us([&] { requests_report(requests, meter, report).dump(); }));
  std::printf("one look at /kv and /requests every 100 ms takes %.2f %% of the engine's time\n",
              (kv_us + requests_us) / 1000);
}

}  // namespace
}  // namespace quire

int main(int count, char** arguments) {
  using namespace quire;
  if (count != 2) {
    std::fprintf(stderr, "view_bench MODEL.gguf\n");
    return 2;
  }
  const std::shared_ptr<const ModelFile> file = open_model_file(arguments[1]);
  const ModelSpec spec = read_model_spec(*file);
  const Weights weights = load_weights(file, spec);
  IdleBackend backend;
  const EngineModel model{
      .spec = &spec, .weights = &weights, .backend = &backend, .tokenizer = nullptr, .end_tokens = {}};
  EngineOptions options{.context = 1 << 12, .max_sequences = kStreams};
  options.page_tokens = kRows;
  const KvLayout layout = make_kv_layout(kv_shapes(spec, options.kv_formats), options.page_tokens);
  options.kv_bytes = (kPages + kStreams) * layout.groups.front().page_bytes;
  Engine engine(model, options);
  look(engine, spec.vocab);
}
