#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "golden_model.h"

namespace quire {

// The program run as a user runs it.
struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Cli : public testing::Test {
 protected:
  Cli() { std::filesystem::create_directories(folder_); }
  ~Cli() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }

  Outcome quire(const std::string& arguments, const std::string& input = "") const {
    write("in", input);
    const std::string command = std::string(QUIRE_BINARY_DIR) + "/quire " + arguments + " <" + path("in") +
                                " >" + path("out") + " 2>" + path("err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(path("out")), slurp(path("err"))};
  }
  Json quire_json(const std::string& arguments, const std::string& input = "") const {
    const Outcome outcome = quire(arguments, input);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return parse_json(outcome.out, "the output");
  }

  std::string folder_ = testing::TempDir() + "/quire_cli_" + std::to_string(::getpid());
  std::string llama_ = golden_folder("llama3");  // the golden with a tokenizer and a template
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace quire
