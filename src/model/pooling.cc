#include "model/pooling.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

constexpr std::array<std::pair<Pooling, std::string_view>, 4> kPoolings = {
    {{Pooling::mean, "mean"}, {Pooling::cls, "cls"}, {Pooling::last, "last"}, {Pooling::rank, "rank"}}};

}  // namespace

std::string_view name(Pooling pooling) {
  return std::ranges::find(kPoolings, pooling, &std::pair<Pooling, std::string_view>::first)->second;
}

Pooling pooling_from_name(std::string_view name) {
  const auto found = std::ranges::find(kPoolings, name, &std::pair<Pooling, std::string_view>::second);
  if (found == kPoolings.end())
    throw Error("there is no pooling '{}': known are mean, cls, last and rank", name);
  return found->first;
}

std::optional<Pooling> said_pooling(const ModelFile& file) {
  const Metadata& metadata = file.metadata();
  const std::string key = metadata.text("general.architecture") + ".pooling_type";
  const auto said = metadata.maybe_number(key);
  switch (said.value_or(0)) {  // as GGUF numbers them
    case 0:
      return std::nullopt;
    case 1:
      return Pooling::mean;
    case 2:
      return Pooling::cls;
    case 3:
      return Pooling::last;
    case 4:
      return Pooling::rank;
    default:
      throw Error("{}: {} is {}, which is no pooling that is known", file.path(), key, *said);
  }
}

}  // namespace quire
