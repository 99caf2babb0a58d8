#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "golden_model.h"
#include "model/synth.h"

namespace quire {

// The synthetic model of a type, written once by this process and gone with it.
class SynthFile {
 public:
  explicit SynthFile(const std::string& type)
      : path_(testing::TempDir() + "/quire_" + type + "_" + std::to_string(::getpid()) + ".gguf") {
    ThreadPool pool(2);
    write_synthetic_model(synth_shape("tiny"), TypeMix(type), path_, pool);
  }
  ~SynthFile() { std::filesystem::remove(path_); }
  SynthFile(const SynthFile&) = delete;
  SynthFile& operator=(const SynthFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// `model`: a golden's name, or synth:TYPE.
inline std::string model_path(const std::string& model) {
  if (!model.starts_with("synth:")) return golden_folder(model);
  static std::map<std::string, SynthFile> files;
  const std::string type = model.substr(6);
  return files.try_emplace(type, type).first->second.path();
}

}  // namespace quire
