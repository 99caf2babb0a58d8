#include "eval/kv_verdicts.h"

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

using Verdict = KvMeterResult::Verdict;
constexpr Verdict kVerdicts[] = {Verdict::same, Verdict::small, Verdict::noticeable, Verdict::broken};

}  // namespace

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::same:
      return "same";
    case Verdict::small:
      return "small";
    case Verdict::noticeable:
      return "noticeable";
    case Verdict::broken:
      break;
  }
  return "broken";
}

std::string KvVerdicts::path_of(const std::string& model_path) {
  if (std::filesystem::is_directory(model_path))
    return (std::filesystem::path(model_path) / "kv-check.json").string();
  return model_path + ".kv-check.json";
}

KvVerdicts KvVerdicts::read(const std::string& path) {
  KvVerdicts verdicts;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return verdicts;
  const Json object = read_json_file(path, 1 << 20);
  const auto refuse = [&] {
    throw Error("{} does not say how well KV formats did: \"quire kv-check --remember\" writes it anew",
                path);
  };
  if (!object.is_object()) refuse();
  for (const auto& [format, entry] : object.items()) {
    if (!entry.is_object() || !entry.contains("verdict") || !entry.contains("perplexity_loss") ||
        !entry["perplexity_loss"].is_number())
      refuse();
    for (const Verdict verdict : kVerdicts) {
      if (entry["verdict"] == name(verdict))
        verdicts.entries_[format] = {verdict, entry["perplexity_loss"].get<double>()};
    }
    if (!verdicts.entries_.contains(format)) refuse();
  }
  return verdicts;
}

void KvVerdicts::write(const std::string& path) const {
  OrderedJson object = OrderedJson::object();
  for (const auto& [format, entry] : entries_)
    object[format] = {{"verdict", name(entry.verdict)}, {"perplexity_loss", entry.loss}};
  std::ofstream file(path);
  file << object.dump(2) << "\n";
  if (!file.flush()) throw Error("cannot write {}", path);
}

std::optional<KvVerdicts::Entry> KvVerdicts::find(const std::string& format) const {
  const auto found = entries_.find(format);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

}  // namespace quire
