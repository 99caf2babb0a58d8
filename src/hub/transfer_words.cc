#include "hub/transfer_words.h"

#include <algorithm>

#include <fmt/format.h>

namespace quire {
namespace {

std::string time_in_words(double seconds) {
  if (seconds > 359'999) return "days";
  const auto whole = uint64_t(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

std::string bytes_in_words(uint64_t bytes) {
  constexpr const char* kNames[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
  double value = double(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit < 5; ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} bytes", bytes)
                   : fmt::format("{:.{}f} {}", value, value < 100 ? 1 : 0, kNames[unit]);
}

std::string progress_line(uint64_t done, uint64_t total, double bytes_per_second, size_t columns) {
  const double share = total > 0 ? std::min(1.0, double(done) / double(total)) : 1;
  std::string figures =
      fmt::format("{:3} %  {} of {}", int(100 * share), bytes_in_words(done), bytes_in_words(total));
  if (bytes_per_second > 0) {
    figures += fmt::format("  {}/s", bytes_in_words(uint64_t(bytes_per_second)));
    if (done < total)
      figures += fmt::format("  {} left", time_in_words(double(total - done) / bytes_per_second));
  }
  // The bar has what the figures leave, and goes first where there is little.
  const size_t room = columns > figures.size() + 4 ? std::min<size_t>(columns - figures.size() - 4, 30) : 0;
  if (room < 5) return figures.substr(0, columns);
  const auto full = size_t(share * double(room));
  return "[" + std::string(full, '#') + std::string(room - full, '.') + "] " + figures;
}

}  // namespace quire
