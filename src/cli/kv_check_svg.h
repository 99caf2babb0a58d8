#pragma once

#include <string>

#include "eval/kv_meter.h"

namespace quire::cli {

// Perplexity by position with both formats, and by how much they differ.
std::string kv_check_svg(const KvMeterResult& result, const std::string& model, const std::string& format);

}  // namespace quire::cli
