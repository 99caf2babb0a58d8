#include "cli/svg_page.h"

#include <cmath>

#include <fmt/format.h>

#include "cli/svg_text.h"

namespace quire::cli {
namespace {

constexpr const char* kStyle =
    "text{fill:#222}text.quiet{fill:#666}text.title{font-size:15px;font-weight:bold}.back{fill:#fff}"
    ".grid{stroke:#ddd}.ink{stroke:#222;stroke-width:1.5}.prefill{fill:#c2571a}.decode{fill:#2a6f97}"
    ".kept{fill:#b9cfdc}.wait{fill:#cdd1d5}.changed{fill:#c2571a}.drawn{fill:none;stroke:#222;stroke-width:1."
    "2}"
    "\n"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}text.quiet{fill:#a0a4a8}.back{fill:#181a1d}"
    ".grid{stroke:#3a3d42}.ink{stroke:#ddd}.prefill{fill:#e07b3e}.decode{fill:#5aa5cf}.kept{fill:#33505f}"
    ".wait{fill:#565b62}.changed{fill:#e07b3e}.drawn{stroke:#ddd}}";

}  // namespace

SvgPage::SvgPage(double width, double height, std::string_view title) {
  out_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<style>{2}</style>\n<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n",
      width, height, kStyle);
  text(20, 26, title, "title");
}

void SvgPage::text(double x, double y, std::string_view text, std::string_view style, Anchor anchor) {
  constexpr const char* kAnchors[] = {"start", "middle", "end"};
  out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y,
                      style, kAnchors[size_t(anchor)], escaped(text));
}

void SvgPage::rect(double x, double y, double width, double height, std::string_view style, double opacity) {
  out_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" class=\"{}\"", x, y,
                      width, height, style);
  if (opacity < 1) out_ += fmt::format(" opacity=\"{:.3f}\"", opacity);
  out_ += "/>\n";
}

void SvgPage::line(double x1, double y1, double x2, double y2, std::string_view style) {
  out_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1,
                      y1, x2, y2, style);
}

double SvgPage::key(double x, double y, std::string_view style, std::string_view meaning) {
  rect(x, y - 10, 12, 12, style);
  text(x + 17, y, meaning);
  return x + 17 + 6.6 * double(meaning.size()) + 16;
}

double round_tick(double end, double count) {
  const double rough = end / count, power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power) return factor * power;
  }
  return 10 * power;
}

}  // namespace quire::cli
