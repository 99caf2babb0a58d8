#pragma once

#include <string>
#include <string_view>

namespace quire::cli {

// A picture that is drawn from left to right and top to bottom, in colours that suit a light page and a dark one. Texts
// are escaped here. Colours are classes:
//   of shapes  prefill, decode, kept (what the cache holds), wait, changed, drawn (an outline)
//   of lines   grid, ink
//   of texts   quiet, title
class SvgPage {
 public:
  enum class Anchor : uint8_t { start, middle, end };

  SvgPage(double width, double height, std::string_view title);

  void text(double x, double y, std::string_view text, std::string_view style = "",
            Anchor anchor = Anchor::start);
  void rect(double x, double y, double width, double height, std::string_view style, double opacity = 1);
  void line(double x1, double y1, double x2, double y2, std::string_view style);
  // A small square of a colour and what it stands for; returns where the next one may begin.
  double key(double x, double y, std::string_view style, std::string_view meaning);

  std::string done() const { return out_ + "</svg>\n"; }

 private:
  std::string out_;
};

// 1, 2 or 5 times a power of ten, so that about `count` of them reach `end`.
double round_tick(double end, double count);

}  // namespace quire::cli
