#include "cli/timeline_svg.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/svg_text.h"

namespace quire::cli {
namespace {

constexpr double kLeft = 110, kWidth = 760, kTop = 56, kLaneHeight = 34, kLaneStep = 84;
constexpr const char *kPrefill = "#c2571a", *kDecode = "#2a6f97", *kInk = "#222";

std::string time_text(double ms) {
  if (ms < 1000) return fmt::format("{:.0f} ms", ms);
  return fmt::format("{:.{}f} s", ms / 1000, ms < 10000 ? 1 : 0);
}

// 1, 2 or 5 times a power of ten, so that about six of them fit.
double tick_ms(double end_ms) {
  const double rough = end_ms / 6, power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
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
  double end_ms = 1;
  for (const Timeline::Lane& lane : timeline.lanes) {
    for (const Timeline::Bar& bar : lane.bars) end_ms = std::max(end_ms, bar.begin_ms + bar.ms);
  }
  const auto x = [&](double ms) { return kLeft + ms / end_ms * kWidth; };
  const double height = kTop + kLaneStep * double(timeline.lanes.size()) + 40;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2:.0f}\" y=\"26\" font-size=\"15\" font-weight=\"bold\" fill=\"{3}\">{4}</text>\n",
      kLeft + kWidth + 40, height, kLeft, kInk, escaped(timeline.title));
  const double bottom = kTop + kLaneStep * double(timeline.lanes.size());
  for (double tick = 0; tick <= end_ms * 1.0001; tick += tick_ms(end_ms)) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\" stroke=\"#ddd\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{3:.0f}\" text-anchor=\"middle\" fill=\"#666\">{4}</text>\n",
        x(tick), kTop - 12, bottom, bottom + 16, time_text(tick));
  }
  double y = kTop;
  for (const Timeline::Lane& lane : timeline.lanes) {
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\" fill=\"{}\">{}</text>\n",
                       kLeft - 10, y + kLaneHeight / 2 + 4, kInk, escaped(lane.label));
    for (const Timeline::Bar& bar : merged(lane.bars, end_ms / kWidth)) {
      const double width = std::max(0.8, bar.ms / end_ms * kWidth - (bar.ms / end_ms * kWidth > 3 ? 0.6 : 0));
      out += fmt::format("<rect x=\"{:.2f}\" y=\"{:.0f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\"/>\n",
                         x(bar.begin_ms), y, width, kLaneHeight, bar.prefill ? kPrefill : kDecode);
    }
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\" stroke=\"{3}\" "
        "stroke-width=\"1.5\"/>\n",
        x(lane.first_token_ms), y - 6, y + kLaneHeight + 6, kInk);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" fill=\"{}\">first token {}</text>\n",
                       x(lane.first_token_ms) + 5, y - 5, kInk, time_text(lane.first_token_ms));
    out += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#555\">{}</text>\n", kLeft,
                       y + kLaneHeight + 18, escaped(lane.note));
    y += kLaneStep;
  }
  out += fmt::format(
      "<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"12\" height=\"12\" fill=\"{2}\"/><text x=\"{3:.0f}\" "
      "y=\"{4:.0f}\" fill=\"{5}\">"
      "prefill</text>\n<rect x=\"{6:.0f}\" y=\"{1:.0f}\" width=\"12\" height=\"12\" fill=\"{7}\"/><text "
      "x=\"{8:.0f}\" y=\"{4:.0f}\" "
      "fill=\"{5}\">decode</text>\n",
      kLeft + kWidth - 150, 16.0, kPrefill, kLeft + kWidth - 133, 26.0, kInk, kLeft + kWidth - 75, kDecode,
      kLeft + kWidth - 58);
  return out + "</svg>\n";
}

}  // namespace quire::cli
