#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace quire {

// A model that Ollama has fetched. Its file is a GGUF file without the name of one.
struct OllamaModel {
  std::string name;  // "ollama:llama3.2:1b"
  std::string path;
  uint64_t bytes = 0;
};

// Ollama's store, which is read and never written: manifests/HOST/SPACE/NAME/TAG name blobs by their digests.
class OllamaStore {
 public:
  explicit OllamaStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // NAME, NAME:TAG, SPACE/NAME:TAG or HOST/SPACE/NAME:TAG. Throws Error with what is there if this is not, and if it is of a kind
  // that is no single GGUF file.
  OllamaModel find(const std::string& name) const;
  // Those that are one GGUF file.
  std::vector<OllamaModel> list() const;

 private:
  OllamaModel read(const std::filesystem::path& manifest, const std::string& name) const;

  std::filesystem::path folder_;
};

}  // namespace quire
