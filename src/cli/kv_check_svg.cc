#include "cli/kv_check_svg.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/svg_text.h"

namespace quire::cli {
std::string kv_check_svg(const KvMeterResult& result, const std::string& model, const std::string& format) {
  constexpr double kLeft = 70, kRight = 850, kTop = 70, kBottom = 300, kHeight = 380;
  double most = 1;
  for (const KvMeterResult::Span& span : result.spans) {
    if (span.tokens > 0) most = std::max({most, span.perplexity(), span.perplexity_base()});
  }
  most *= 1.1;
  const double tokens = result.spans.empty() ? 1 : result.spans.back().end;
  const auto x = [&](const KvMeterResult::Span& span) {
    return kLeft + (kRight - kLeft) * (span.begin + span.end) / 2.0 / tokens;
  };
  const auto y = [&](double perplexity) { return kBottom - (kBottom - kTop) * perplexity / most; };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 {}\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n"
      "<style>text{{fill:#222}}.axis{{stroke:#888}}.f16{{stroke:#2a6f97;fill:none;stroke-width:2.5}}"
      ".other{{stroke:#c2571a;fill:none;stroke-width:2.5;stroke-dasharray:6 4}}rect.back{{fill:#fff}}"
      "@media(prefers-color-scheme:dark){{text{{fill:#ddd}}rect.back{{fill:#181a1d}}"
      ".f16{{stroke:#5aa5cf}}.other{{stroke:#e07b3e}}}}</style>\n"
      "<rect class=\"back\" width=\"900\" height=\"{}\"/>\n"
      "<text x=\"{}\" y=\"28\" font-size=\"17\">{}: KV {} beside f16, {} tokens</text>\n"
      "<text x=\"{}\" y=\"50\">{}</text>\n",
      kHeight, kHeight, kLeft, escaped(model), format, result.tokens, kLeft, result.sentence());
  svg += fmt::format("<line class=\"axis\" x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\"/>\n", kLeft, kBottom,
                     kRight);
  for (int tick = 0; tick <= 4; ++tick) {
    const double value = most * tick / 4;
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.1f}</text>\n", kLeft - 8,
                       y(value) + 4, value);
  }
  std::string base, other;
  for (const KvMeterResult::Span& span : result.spans) {
    if (span.tokens == 0) continue;
    base += fmt::format("{:.1f},{:.1f} ", x(span), y(span.perplexity_base()));
    other += fmt::format("{:.1f},{:.1f} ", x(span), y(span.perplexity()));
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(span),
                       kBottom + 20, span.end);
    svg +=
        fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\" font-size=\"11\">{:+.2f} %</text>\n",
                    x(span), kBottom + 40, 100 * (span.perplexity() / span.perplexity_base() - 1));
  }
  svg += fmt::format("<polyline class=\"f16\" points=\"{}\"/>\n<polyline class=\"other\" points=\"{}\"/>\n",
                     base, other);
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\">perplexity by position in the window; f16 (line), {} (dashes), change "
      "below</text>\n</svg>\n",
      kLeft, kBottom + 66, format);
  return svg;
}

}  // namespace quire::cli
