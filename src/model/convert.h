#pragma once

#include <functional>
#include <string>

#include "base/thread_pool.h"
#include "model/metadata.h"
#include "model/model_file.h"
#include "model/type_mix.h"

namespace quire {

struct ConvertOptions {
  Metadata metadata;  // of the new file; its type is set here
  uint32_t layers = 0;
  std::function<void(size_t done, size_t total)> progress;  // in bytes; may be empty
};

// Writes `file` as a GGUF file of another type, tensor by tensor, and returns the bytes of its weights.
size_t convert_to_gguf(const ModelFile& file, const TypeMix& mix, const std::string& out,
                       ConvertOptions options, ThreadPool& pool);

}  // namespace quire
