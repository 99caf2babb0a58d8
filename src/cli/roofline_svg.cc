#include "cli/roofline_svg.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "cli/svg_text.h"

namespace quire::cli {
namespace {

// For a light page and for a dark one.
constexpr const char* kRooflineStyle =
    "text{fill:#222}text.quiet{fill:#555}.back{fill:#fff}.grid{stroke:#ddd}.ink{stroke:#222}.limit{stroke:#"
    "999}"
    ".prefill,text.prefill{fill:#b84a0a}.decode,text.decode{fill:#1f5fa8}\n"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}text.quiet{fill:#a8acb0}.back{fill:#181a1d}"
    ".grid{stroke:#3a3d42}.ink{stroke:#ddd}.limit{stroke:#888}.prefill,text.prefill{fill:#ea8a50}"
    ".decode,text.decode{fill:#6db3dc}}";

// Whole powers of ten from below the smallest to above the largest number.
struct LogAxis {
  int first = 0, last = 0;  // powers
  double begin = 0, length = 0;

  void fit(std::vector<double> values) {
    first = int(std::floor(std::log10(*std::min_element(values.begin(), values.end()))));
    last = std::max(first + 1, int(std::ceil(std::log10(*std::max_element(values.begin(), values.end())))));
  }
  double at(double value) const { return begin + (std::log10(value) - first) / (last - first) * length; }
};

class RooflineDrawing {
 public:
  explicit RooflineDrawing(const Roofline& roofline) : roofline_(roofline) {
    std::vector<double> xs = {1}, ys;
    for (const Roofline::Roof& roof : roofline.roofs) {
      xs.push_back(roof.gops / roofline.read_gb_s);
      ys.push_back(roof.gops);
    }
    for (const RooflinePoint& point : roofline.points) {
      xs.push_back(point.ops_per_byte);
      ys.insert(ys.end(), {point.gops, point.limit_gops});
    }
    x_ = {.begin = kLeft, .length = kWidth};
    y_ = {.begin = kTop + kHeight, .length = -kHeight};
    x_.fit(xs);
    y_.fit(ys);
    top_gops_ = 0;
    for (const Roofline::Roof& roof : roofline.roofs) top_gops_ = std::max(top_gops_, roof.gops);
  }

  std::string draw() {
    const double legend_height = kTop + kLegendLine * double(roofline_.points.size() + 3);
    const double height = std::max(kTop + kHeight + 60, legend_height);
    out_ += fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<style>{2}</style>\n<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n",
        kLegendX + kLegendWidth, height, kRooflineStyle);
    text(kLeft, kTop - 20, "start", roofline_.title, "font-size=\"15\" font-weight=\"bold\"");
    axes();
    slope();
    for (const Roofline::Roof& roof : roofline_.roofs) flat(roof);
    points();
    legend();
    return out_ + "</svg>\n";
  }

 private:
  static constexpr double kLeft = 70, kTop = 50, kWidth = 620, kHeight = 430;  // of the plot
  static constexpr double kLegendX = kLeft + kWidth + 30, kLegendWidth = 330;
  static constexpr double kLegendLine = 20;
  static constexpr double kNumberHeight = 13;  // of a point's number: two closer than this are moved apart

  void line(double x1, double y1, double x2, double y2, const char* style) {
    out_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2,
                        y2, style);
  }
  void text(double x, double y, const char* anchor, const std::string& what, const std::string& style = "") {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y, anchor,
                        style, escaped(what));
  }

  void axes() {
    constexpr const char* kGrid = "class=\"grid\"";
    for (int power = x_.first; power <= x_.last; ++power) {
      const double x = x_.at(std::pow(10.0, power));
      line(x, kTop, x, kTop + kHeight, kGrid);
      text(x, kTop + kHeight + 18, "middle", fmt::format("{:g}", std::pow(10.0, power)));
    }
    for (int power = y_.first; power <= y_.last; ++power) {
      const double y = y_.at(std::pow(10.0, power));
      line(kLeft, y, kLeft + kWidth, y, kGrid);
      text(kLeft - 8, y + 4, "end", fmt::format("{:g}", std::pow(10.0, power)));
    }
    text(kLeft + kWidth / 2, kTop + kHeight + 42, "middle", "operations per byte");
    text(18, kTop + kHeight / 2, "middle", "10⁹ operations per second",
         fmt::format("transform=\"rotate(-90 18 {:.1f})\"", kTop + kHeight / 2));
  }

  // From where it enters the plot to where it meets the highest roof.
  void slope() {
    const double left = std::max(std::pow(10.0, x_.first), std::pow(10.0, y_.first) / roofline_.read_gb_s);
    const double right = top_gops_ / roofline_.read_gb_s;
    line(x_.at(left), y_.at(left * roofline_.read_gb_s), x_.at(right), y_.at(top_gops_), kRoof);
    const double middle_x = (x_.at(left) + x_.at(right)) / 2;
    const double middle_y = (y_.at(left * roofline_.read_gb_s) + y_.at(top_gops_)) / 2;
    const double angle = std::atan2(y_.at(10) - y_.at(1), x_.at(10) - x_.at(1)) * 180 / M_PI;
    text(
        middle_x, middle_y - 8, "middle", fmt::format("memory {:.1f} GB/s", roofline_.read_gb_s),
        fmt::format("class=\"quiet\" transform=\"rotate({:.1f} {:.1f} {:.1f})\"", angle, middle_x, middle_y));
  }

  void flat(const Roofline::Roof& roof) {
    const double y = y_.at(roof.gops);
    line(x_.at(roof.gops / roofline_.read_gb_s), y, kLeft + kWidth, y,
         roof.gops == top_gops_ ? kRoof : kLowerRoof);
    text(kLeft + kWidth - 4, y - 6, "end", roof.label, "class=\"quiet\"");
  }

  void points() {
    std::vector<size_t> order(roofline_.points.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return roofline_.points[a].gops > roofline_.points[b].gops; });
    std::vector<std::pair<double, double>> numbers;  // where those are that were drawn
    for (size_t index : order) {
      const RooflinePoint& point = roofline_.points[index];
      const double x = x_.at(point.ops_per_byte);
      const double y = y_.at(point.gops);
      const double limit = y_.at(point.limit_gops);
      line(x, y, x, limit, "class=\"limit\" stroke-dasharray=\"2 3\"");
      line(x - 5, limit, x + 5, limit, "class=\"limit\"");
      mark(point, x, y, index + 1);
      double number_y = y + 4;
      for (const auto& [other_x, other_y] : numbers) {  // from the top down
        if (std::fabs(other_x - x) < 3 * kNumberHeight && number_y < other_y + kNumberHeight) {
          number_y = other_y + kNumberHeight;
        }
      }
      numbers.emplace_back(x, number_y);
      text(x + 9, number_y, "start", fmt::format("{}", index + 1),
           fmt::format("class=\"{}\"", colour(point)));
    }
  }

  static const char* colour(const RooflinePoint& point) {
    return point.kind == RooflinePoint::Kind::round ? "prefill" : "decode";
  }

  void mark(const RooflinePoint& point, double x, double y, size_t number) {
    const std::string title = fmt::format("<title>{}. {}</title>", number, escaped(point.label));
    if (point.kind == RooflinePoint::Kind::round) {
      out_ += fmt::format("<circle class=\"point {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\">{}</circle>\n",
                          colour(point), x, y, title);
    } else {
      out_ += fmt::format(
          "<rect class=\"point {}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"9\" height=\"9\">{}</rect>\n",
          colour(point), x - 4.5, y - 4.5, title);
    }
  }

  void legend() {
    double y = kTop + 4;
    for (size_t i = 0; i < roofline_.points.size(); ++i, y += kLegendLine) {
      const RooflinePoint& point = roofline_.points[i];
      text(kLegendX, y, "start", fmt::format("{}. {}", i + 1, point.label),
           fmt::format("class=\"{}\"", colour(point)));
    }
    text(kLegendX, y + kLegendLine, "start", "A dash above a point is its own limit.", "class=\"quiet\"");
  }

  static constexpr const char* kRoof = "class=\"ink\" stroke-width=\"2\"";
  static constexpr const char* kLowerRoof = "class=\"ink\" stroke-width=\"1\" stroke-dasharray=\"6 4\"";

  const Roofline& roofline_;
  LogAxis x_, y_;
  double top_gops_ = 0;
  std::string out_;
};

}  // namespace

std::string roofline_svg(const Roofline& roofline) {
  return RooflineDrawing(roofline).draw();
}

}  // namespace quire::cli
