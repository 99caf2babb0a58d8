#include "engine/request.h"

#include <cmath>

#include "base/error.h"

namespace quire {

void SamplingOptions::check() const {
  const auto require = [](bool holds, const char* what, float value, const char* range) {
    if (!holds) throw Error("{} is {}, but must be {}", what, value, range);
  };
  require(temperature >= 0 && std::isfinite(temperature), "temperature", temperature, "0 or more");
  require(top_p > 0 && top_p <= 1, "top-p", top_p, "above 0 and at most 1");
  require(min_p >= 0 && min_p <= 1, "min-p", min_p, "from 0 to 1");
  require(typical > 0 && typical <= 1, "typical", typical, "above 0 and at most 1");
  require(repetition_penalty > 0 && std::isfinite(repetition_penalty), "repetition penalty",
          repetition_penalty, "above 0");
  require(std::isfinite(presence_penalty), "presence penalty", presence_penalty, "a number");
  require(std::isfinite(frequency_penalty), "frequency penalty", frequency_penalty, "a number");
  for (const auto& [token, bias] : logit_bias) require(!std::isnan(bias), "logit bias", bias, "a number");
}

std::string_view name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::deadline:
      return "deadline";
    case FinishReason::no_room:
      return "no_room";
    case FinishReason::failed:
      return "failed";
    case FinishReason::none:
      break;
  }
  return "none";
}

std::string_view text(StoreOutcome outcome) {
  switch (outcome) {
    case StoreOutcome::came:
      return "pages came from the shared store";
    case StoreOutcome::nothing:
      return "the shared store had nothing of what was missing";
    case StoreOutcome::slower:
      return "fetching from the shared store would have taken longer than computing";
    case StoreOutcome::late:
      return "the shared store took as long as computing would have: no more was waited for";
    case StoreOutcome::unreachable:
      return "the shared store did not answer";
    case StoreOutcome::refused:
      return "a page of the shared store was not what it should be, and was computed instead";
    case StoreOutcome::not_asked:
      break;
  }
  return "the shared store was not asked";
}

std::string_view name(GapCause cause) {
  switch (cause) {
    case GapCause::prefill_of_another:
      return "prefill of another";
    case GapCause::preemption:
      return "preemption";
    case GapCause::eviction:
      return "eviction";
    case GapCause::none:
      break;
  }
  return "none";
}

}  // namespace quire
