#include "engine/verdict.h"

#include <algorithm>

#include <fmt/format.h>

namespace quire {
namespace {

constexpr double kWaitNoticedMs = 50;  // less than this nobody feels
constexpr double kLongGap = 2;         // times the median

double own_prefill_ms(const RequestAccount& account) {
  double ms = account.choosing_ms;
  for (const RequestAccount::Chunk& chunk : account.prefill)
    ms += chunk.took_ms * chunk.tokens / std::max(1u, chunk.step_tokens);
  return ms;
}

void judge_start(const Answer& answer, Verdict& verdict) {
  const RequestAccount& account = answer.account;
  const double own = own_prefill_ms(account);
  const double waited = answer.timings.ttft_ms - own - account.host_ms - account.disk_ms - account.remote_ms;
  if (account.miss.why == PrefixMiss::Why::nothing) {
    verdict.lines.push_back(fmt::format("{} of {} prompt tokens were cached; the last is always computed",
                                        account.cached_tokens, answer.prompt_tokens));
  } else if (account.cached_tokens > 0 || account.miss.why == PrefixMiss::Why::evicted) {
    verdict.lines.push_back(fmt::format("{} of {} prompt tokens were cached: {}", account.cached_tokens,
                                        answer.prompt_tokens, account.miss.text()));
  }
  if (account.host_tokens > 0) {
    verdict.lines.push_back(fmt::format("{} of them came back from the host's memory in {:.1f} ms",
                                        account.host_tokens, account.host_ms));
  }
  if (account.disk_tokens > 0) {
    verdict.lines.push_back(
        fmt::format("{} of them came back from the disk in {:.0f} ms", account.disk_tokens, account.disk_ms));
  }
  if (account.remote_tokens > 0) {
    verdict.lines.push_back(fmt::format("{} of them came from the shared store in {:.0f} ms",
                                        account.remote_tokens, account.remote_ms));
  } else if (account.store != StoreOutcome::not_asked && account.store != StoreOutcome::nothing) {
    verdict.lines.push_back(fmt::format("{} ({:.0f} ms)", text(account.store), account.remote_ms));
  }
  if (waited < kWaitNoticedMs || waited < own) return;
  verdict.slow_to_start = true;
  const double queued =
      std::max(0.0, account.queue_ms - account.host_ms - account.disk_ms - account.remote_ms);
  const double beside = std::max(0.0, waited - queued);
  verdict.lines.push_back(fmt::format(
      "slow to start: {:.0f} of {:.0f} ms to the first token were not its own: {:.0f} in the "
      "queue, {:.0f} for "
      "others in the same steps; {}",
      waited, answer.timings.ttft_ms, queued, beside,
      queued > beside ? "more --max-seqs or --kv-memory would help" : "a higher priority would help"));
}

void judge_stream(const Answer& answer, Verdict& verdict) {
  const double median = answer.timings.itl_ms_p50;
  uint32_t counts[4] = {};
  double lost_ms = 0;
  for (const RequestAccount::Gap& gap : answer.account.gaps) {
    if (gap.ms < kLongGap * median || gap.ms < kWaitNoticedMs) continue;
    ++counts[size_t(gap.cause)];
    lost_ms += gap.ms - median;
  }
  const uint32_t all = counts[0] + counts[1] + counts[2] + counts[3];
  if (all == 0) return;
  verdict.slow_to_stream = true;
  std::string causes;
  for (const GapCause cause :
       {GapCause::prefill_of_another, GapCause::preemption, GapCause::eviction, GapCause::none}) {
    if (counts[size_t(cause)] == 0) continue;
    causes +=
        fmt::format("{}{} {}", causes.empty() ? "" : ", ", counts[size_t(cause)],
                    cause == GapCause::none ? "for no reason of ours (the machine was busy)" : name(cause));
  }
  const char* help = counts[size_t(GapCause::preemption)] > 0           ? "; more --kv-memory would help"
                     : counts[size_t(GapCause::prefill_of_another)] > 0 ? "; a lower --itl-target would help"
                                                                        : "";
  verdict.lines.push_back(fmt::format(
      "slow to stream: {} of {} gaps were over {:.0f} ms ({:.0f} ms in all): {}{}", all,
      answer.account.gaps.size(), std::max(kLongGap * median, kWaitNoticedMs), lost_ms, causes, help));
}

}  // namespace

Verdict judge(const Answer& answer) {
  Verdict verdict;
  if (answer.tokens.empty()) return verdict;
  judge_start(answer, verdict);
  judge_stream(answer, verdict);
  if (answer.account.preemptions > 0) {
    verdict.lines.push_back(fmt::format(
        "it was preempted {} and computed again: more --kv-memory would help",
        answer.account.preemptions == 1 ? "once" : fmt::format("{} times", answer.account.preemptions)));
  }
  if (answer.account.drafted > 0) {
    verdict.lines.push_back(
        fmt::format("{} of {} guessed tokens were right", answer.account.accepted, answer.account.drafted));
  }
  return verdict;
}

}  // namespace quire
