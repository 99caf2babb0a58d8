#include "explain/batching.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "base/philox.h"

namespace quire {
namespace {

using Admission = BatchingWay::Admission;
using Room = BatchingWay::Room;

// Rows of a layer group that a sequence of so many tokens fills at the most.
uint32_t most_rows(const KvGroupLayout& group, uint32_t tokens, uint32_t chunk) {
  return group.window == 0 ? tokens : std::min(tokens, group.window + chunk);
}

// Runs one load on one engine: hands requests over as the way of batching allows, and keeps the account.
class LoadRun {
 public:
  LoadRun(const EngineModel& model, const EngineOptions& options, const std::vector<Arrival>& load,
          const BatchingWay& way, size_t kv_bytes)
      : engine_(model, options), load_(load), at_once_(options.max_sequences), chunk_(options.prefill_chunk) {
    figures_.way = way;
    figures_.kv_bytes = kv_bytes;
    figures_.stories.resize(load.size());
    for (size_t i = 0; i < load.size(); ++i) {
      figures_.stories[i].arrived = load[i].pass;
      queue_.push_back(i);
    }
  }

  BatchingFigures run() {
    for (pass_ = 0; !queue_.empty() || !running_.empty(); ++pass_) {
      admit();
      PassAccount& account = figures_.passes.emplace_back();
      if (running_.empty()) continue;  // the next has not arrived yet
      const uint64_t before = engine_.steps().total();
      CHECK(engine_.step());
      CHECK(engine_.steps().total() == before + 1);  // nothing is pinned: somebody always fits
      const StepRecord record = engine_.steps().since(before).front();
      account.ms = record.ms;
      account.running = record.runs;
      for (auto& [id, answer] : engine_.take_answers()) finish(id, answer);
      add_bytes(account);
    }
    figures_.preemptions = engine_.load().preemptions;
    return std::move(figures_);
  }

 private:
  size_t reservation(size_t request) const {
    const uint32_t tokens = uint32_t(load_[request].prompt.size()) + load_[request].max_tokens;
    size_t bytes = 0;
    for (const KvGroupLayout& group : engine_.kv().layout().groups)
      bytes += most_rows(group, tokens, chunk_) * group.bytes_per_token();
    return bytes;
  }

  void admit() {
    if (figures_.way.admission == Admission::fixed && !running_.empty()) return;
    size_t reserved = 0;
    for (const auto& [id, request] : running_) reserved += reservation(request);
    while (!queue_.empty() && load_[queue_.front()].pass <= pass_ && running_.size() < at_once_) {
      const size_t request = queue_.front();
      reserved += reservation(request);
      if (figures_.way.room == Room::contiguous && reserved > figures_.kv_bytes) {
        if (running_.empty())
          throw Error("a request of {} tokens needs {} bytes of KV cache, but there are {}",
                      load_[request].prompt.size() + load_[request].max_tokens, reserved, figures_.kv_bytes);
        return;
      }
      queue_.pop_front();
      submit(request);
    }
  }

  void submit(size_t request) {
    RequestStory& story = figures_.stories[request];
    story.admitted = pass_;
    Request asked;
    asked.prompt = load_[request].prompt;
    asked.max_tokens = load_[request].answer_tokens;  // as if it had drawn an end token there
    asked.sampling.temperature = 0;
    asked.ignore_end = true;
    asked.on_token = [this, &story](const TokenEvent&) { story.token_passes.push_back(pass_); };
    running_.emplace_back(engine_.submit(asked), request);
  }

  void finish(SequenceId id, Answer& answer) {
    const auto found = std::ranges::find(running_, id, &std::pair<SequenceId, size_t>::first);
    CHECK(found != running_.end());
    figures_.stories[found->second].tokens = std::move(answer.tokens);
    running_.erase(found);
  }

  // Of the sequences that go on: one that has just finished has given its room back.
  void add_bytes(PassAccount& account) const {
    for (const auto& [id, request] : running_) {
      const std::optional<SequenceView> sequence = engine_.sequence(id);
      size_t used = 0, pages = 0;
      for (uint32_t g = 0; g < sequence->table().groups(); ++g) {
        const KvGroupLayout& group = engine_.kv().layout().groups[g];
        if (group.is_state) continue;
        const uint32_t held = sequence->table().held_pages(g);
        const uint32_t first = (uint32_t(sequence->table().pages(g).size()) - held) * group.page_tokens;
        used += (sequence->computed() - std::min(sequence->computed(), first)) * group.bytes_per_token();
        pages += held * group.page_bytes;
      }
      const size_t reserved = figures_.way.room == Room::paged ? pages : reservation(request);
      account.holding += reserved > 0;
      account.reserved_bytes += reserved;
      account.used_bytes += std::min(used, reserved);
    }
  }

  Engine engine_;
  const std::vector<Arrival>& load_;
  const uint32_t at_once_, chunk_;
  uint32_t pass_ = 0;
  std::deque<size_t> queue_;                            // requests that were not handed over, by arrival
  std::vector<std::pair<SequenceId, size_t>> running_;  // handed over and not finished
  BatchingFigures figures_;
};

// What the engine gets for requests that keep within `bytes` by themselves. It has pages only, and they must not be what
// holds a request back: the last ones are partly empty, the scheduler keeps some for those that run, and window layers get
// fewer than the others.
size_t ample_bytes(const KvLayout& layout, size_t bytes, size_t sequences) {
  size_t page_bytes = 0;
  for (const KvGroupLayout& group : layout.groups) page_bytes += group.page_bytes;
  return 2 * (bytes + (2 * sequences + 1) * page_bytes);
}

}  // namespace

std::vector<Arrival> make_load(const LoadShape& shape) {
  CHECK(shape.vocab > 0 && shape.longest_prompt > 0 && shape.longest_answer > 0);
  uint32_t drawn = 0;
  const auto up_to = [&](uint64_t least, uint64_t most) {
    const std::array<uint32_t, 4> number =
        philox({drawn++, 0, 0, 0}, {uint32_t(shape.seed), uint32_t(shape.seed >> 32)});
    return uint32_t(least + number[0] % (most - least + 1));
  };
  std::vector<Arrival> load;
  uint32_t pass = 0;
  for (uint32_t i = 0; i < shape.requests; ++i) {
    Arrival arrival;
    arrival.pass = pass;
    const uint32_t tokens = up_to((shape.longest_prompt + 7) / 8, shape.longest_prompt);
    arrival.max_tokens = shape.longest_answer;
    arrival.answer_tokens = up_to((shape.longest_answer + 7) / 8, shape.longest_answer);
    for (uint32_t t = 0; t < tokens; ++t) arrival.prompt.push_back(up_to(0, shape.vocab - 1));
    load.push_back(std::move(arrival));
    pass += up_to(0, shape.longest_answer / 6);
  }
  return load;
}

BatchingFigures run_batching(const EngineModel& model, EngineOptions options,
                             const std::vector<Arrival>& load, const BatchingWay& way,
                             const BatchingOptions& batching) {
  CHECK(batching.at_once > 0);
  uint32_t longest = 2;
  for (const Arrival& arrival : load)
    longest = std::max(longest, uint32_t(arrival.prompt.size()) + arrival.max_tokens);
  options.context = longest;
  options.prefill_chunk = std::min(options.prefill_chunk, longest);
  options.kv_cache = true;
  options.sharing = false;  // the account is of sequences that have nothing in common
  options.max_sequences = batching.at_once;
  const KvLayout layout = make_kv_layout(kv_shapes(*model.spec, options.kv_formats));
  const size_t bytes = batching.kv_bytes > 0
                           ? batching.kv_bytes
                           : kv_bytes(layout, pages_for(layout, longest, options.prefill_chunk, 3));
  const size_t at_most = std::min<size_t>(batching.at_once, load.size());
  options.kv_bytes = way.room == Room::paged ? bytes : ample_bytes(layout, bytes, at_most);
  return LoadRun(model, options, load, way, bytes).run();
}

void check_same_answers(const BatchingFigures& a, const BatchingFigures& b) {
  for (size_t i = 0; i < a.stories.size(); ++i) {
    if (a.stories[i].tokens != b.stories[i].tokens)
      throw Error("request {} got another answer in other company: this is a bug of quire", i + 1);
  }
}

uint32_t BatchingFigures::worked_passes() const {
  return uint32_t(std::ranges::count_if(passes, [](const PassAccount& p) { return p.running > 0; }));
}

uint64_t BatchingFigures::answer_tokens() const {
  uint64_t tokens = 0;
  for (const RequestStory& story : stories) tokens += story.tokens.size();
  return tokens;
}

double BatchingFigures::seconds() const {
  double ms = 0;
  for (const PassAccount& pass : passes) ms += pass.ms;
  return ms / 1000;
}

uint32_t BatchingFigures::most_running() const {
  uint32_t most = 0;
  for (const PassAccount& pass : passes) most = std::max(most, pass.running);
  return most;
}

double BatchingFigures::mean_running() const {
  double sum = 0;
  for (const PassAccount& pass : passes) sum += pass.running;
  return worked_passes() > 0 ? sum / worked_passes() : 0;
}

double BatchingFigures::mean_unused_bytes() const {
  double sum = 0;
  for (const PassAccount& pass : passes) sum += double(pass.reserved_bytes - pass.used_bytes);
  return worked_passes() > 0 ? sum / worked_passes() : 0;
}

double BatchingFigures::unused_share() const {
  double unused = 0, reserved = 0;
  for (const PassAccount& pass : passes) {
    unused += double(pass.reserved_bytes - pass.used_bytes);
    reserved += double(pass.reserved_bytes);
  }
  return reserved > 0 ? unused / reserved : 0;
}

double BatchingFigures::fitting() const {
  double holding = 0, reserved = 0;
  for (const PassAccount& pass : passes) {
    holding += pass.holding;
    reserved += double(pass.reserved_bytes);
  }
  return reserved > 0 ? double(kv_bytes) * holding / reserved : 0;
}

std::vector<double> BatchingFigures::gaps_ms() const {
  std::vector<double> ends = {0};  // when each pass ended
  for (const PassAccount& pass : passes) ends.push_back(ends.back() + pass.ms);
  std::vector<double> gaps;
  for (const RequestStory& story : stories) {
    for (size_t i = 1; i < story.token_passes.size(); ++i)
      gaps.push_back(ends[story.token_passes[i] + 1] - ends[story.token_passes[i - 1] + 1]);
  }
  return gaps;
}

std::vector<double> BatchingFigures::waits_ms() const {
  std::vector<double> ends = {0};
  for (const PassAccount& pass : passes) ends.push_back(ends.back() + pass.ms);
  std::vector<double> waits;
  for (const RequestStory& story : stories)
    waits.push_back(ends[story.token_passes.front() + 1] - ends[story.arrived]);
  return waits;
}

std::vector<uint32_t> BatchingFigures::waits_passes() const {
  std::vector<uint32_t> waits;
  for (const RequestStory& story : stories) waits.push_back(story.token_passes.front() + 1 - story.arrived);
  return waits;
}

double percentile_of(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const size_t rank = size_t(std::ceil(share * double(values.size())));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

}  // namespace quire
