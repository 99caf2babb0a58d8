#pragma once

#include <functional>
#include <string>

#include "base/thread_pool.h"
#include "model/importance.h"
#include "model/metadata.h"
#include "model/model_file.h"
#include "model/type_mix.h"

namespace quire {

struct ConvertOptions {
  Metadata metadata;  // of the new file; its type is set here
  uint32_t layers = 0;
  const Importance* importance = nullptr;                   // null: all columns matter alike
  std::function<void(size_t done, size_t total)> progress;  // in bytes; may be empty
};

// What was written: bytes of weights, and how many matrices nothing was known of that were rounded to few bits all the same.
struct Converted {
  size_t bytes = 0;
  size_t matrices = 0, unknown = 0;
};

// Writes `file` as a GGUF file of another type, tensor by tensor. Throws Error, before it does, if a type needs importance and a tensor has none.
Converted convert_to_gguf(const ModelFile& file, const TypeMix& mix, const std::string& out,
                          ConvertOptions options, ThreadPool& pool);

}  // namespace quire
