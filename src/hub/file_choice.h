#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hub/repo_listing.h"

namespace quire {

// One model among the files of a repository: a GGUF file, all parts of a split one, or a folder of safetensors with its
// config and tokenizer.
struct StoredModel {
  std::string label;  // "Q4_K_M", "UD-Q4_K_XL", "safetensors"; empty where a GGUF file's name tells no type
  std::vector<RepoFile> files = {};  // of a split GGUF the first is the one to open
  bool folder = false;

  uint64_t bytes() const;
  std::string name() const;  // its label, or its file's name
};

// The models that quire could open, the best first: GGUF files by what most people take (4 bits, then more, then less,
// then floats), then the folder. A split model that is not whole is none.
std::vector<StoredModel> models_in(std::span<const RepoFile> files);

struct FileChoice {
  StoredModel model;
  std::string why;  // a sentence for the user
};

// The model that `which` means; where it is empty, the best of those that fit into so much memory. Throws Error, with
// what there is, if there is none, if several could be meant, or if none fits.
FileChoice choose_model(std::span<const StoredModel> models, const std::string& which, uint64_t memory_bytes,
                        const std::string& repo);

}  // namespace quire
