#pragma once

#include <map>
#include <optional>
#include <string>

#include "eval/kv_meter.h"

namespace quire {

std::string_view name(KvMeterResult::Verdict verdict);

// What the meter found for a model, by format as --kv names it: kept in a file beside the model.
class KvVerdicts {
 public:
  struct Entry {
    KvMeterResult::Verdict verdict = KvMeterResult::Verdict::same;
    double loss = 0;  // of perplexity
  };

  static std::string path_of(const std::string& model_path);
  // Empty if there is no such file. Throws Error if it does not say what it should.
  static KvVerdicts read(const std::string& path);
  void write(const std::string& path) const;  // throws Error

  void add(const std::string& format, const KvMeterResult& result) {
    entries_[format] = {result.verdict(), result.loss()};
  }
  std::optional<Entry> find(const std::string& format) const;

 private:
  std::map<std::string, Entry> entries_;
};

}  // namespace quire
