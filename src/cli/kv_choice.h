#pragma once

#include <string>

#include "engine/loaded_model.h"

namespace quire::cli {

// The text that formats are measured on if the user gives none: stories and small documents of the house.
std::string kv_check_text();

// `--kv auto`: the smallest format that the meter finds harmless for this model. What it finds is kept beside the model, so
// that it is measured once.
std::string choose_kv(const std::string& model_path, const LoadOptions& load);

// Words of warning about a format that the meter found to harm this model; empty if there is nothing to say.
struct KvWarning {
  std::string words;
  bool broken = false;
};
KvWarning kv_warning(const std::string& model_path, const std::string& format);

}  // namespace quire::cli
