#include "cli/timeline_svg.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/svg_page.h"

namespace quire::cli {
namespace {

std::string time_text(double ms) {
  if (ms < 1000) return fmt::format("{:.0f} ms", ms);
  return fmt::format("{:.{}f} s", ms / 1000, ms < 10000 ? 1 : 0);
}

// Neighbours of one kind that would be thinner than a pixel are drawn as one.
std::vector<Timeline::Bar> merged(const std::vector<Timeline::Bar>& bars, double ms_per_pixel) {
  std::vector<Timeline::Bar> result;
  for (const Timeline::Bar& bar : bars) {
    if (!result.empty() && result.back().prefill == bar.prefill &&
        (result.back().ms < 2 * ms_per_pixel || bar.ms < 2 * ms_per_pixel)) {
      result.back().ms = bar.begin_ms + bar.ms - result.back().begin_ms;
    } else {
      result.push_back(bar);
    }
  }
  return result;
}

}  // namespace

std::string timeline_svg(const Timeline& timeline) {
  constexpr double kLeft = 110, kWidth = 760, kTop = 56, kLaneHeight = 34, kLaneStep = 84;
  double end_ms = 1;
  for (const Timeline::Lane& lane : timeline.lanes) {
    for (const Timeline::Bar& bar : lane.bars) end_ms = std::max(end_ms, bar.begin_ms + bar.ms);
  }
  const auto x = [&](double ms) { return kLeft + ms / end_ms * kWidth; };
  const double bottom = kTop + kLaneStep * double(timeline.lanes.size());
  SvgPage page(kLeft + kWidth + 40, bottom + 56, timeline.title);
  page.key(page.key(kLeft + kWidth - 150, 26, "prefill", "prefill"), 26, "decode", "decode");
  const double tick_ms = round_tick(end_ms, 6);
  for (double tick = 0; tick <= end_ms * 1.0001; tick += tick_ms) {
    page.line(x(tick), kTop - 12, x(tick), bottom, "grid");
    page.text(x(tick), bottom + 16, time_text(tick), "quiet", SvgPage::Anchor::middle);
  }
  double y = kTop;
  for (const Timeline::Lane& lane : timeline.lanes) {
    page.text(kLeft - 10, y + kLaneHeight / 2 + 4, lane.label, "", SvgPage::Anchor::end);
    for (const Timeline::Bar& bar : merged(lane.bars, end_ms / kWidth)) {
      const double width = bar.ms / end_ms * kWidth;
      page.rect(x(bar.begin_ms), y, std::max(0.8, width - (width > 3 ? 0.6 : 0)), kLaneHeight,
                bar.prefill ? "prefill" : "decode");
    }
    page.line(x(lane.first_token_ms), y - 6, x(lane.first_token_ms), y + kLaneHeight + 6, "ink");
    // A text that would leave the picture stands before its line.
    const bool late = lane.first_token_ms > 0.8 * end_ms;
    page.text(x(lane.first_token_ms) + (late ? -5 : 5), y - 5,
              fmt::format("first token {}", time_text(lane.first_token_ms)), "",
              late ? SvgPage::Anchor::end : SvgPage::Anchor::start);
    page.text(kLeft, y + kLaneHeight + 18, lane.note, "quiet");
    y += kLaneStep;
  }
  page.text(kLeft, bottom + 38, "A bar is a pass; thin ones are drawn together.", "quiet");
  return page.done();
}

}  // namespace quire::cli
