#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "cli/model_options.h"
#include "engine/engine_loop.h"
#include "openai/openai_request.h"

namespace quire::capi {

using OptionList = std::vector<std::pair<std::string, std::string>>;

// A model that a program has opened, with an engine on a thread of its own. Any thread may use it.
class LibraryModel {
 public:
  // Throws CLI::ParseError if an option is wrong, Error if the model cannot be opened.
  LibraryModel(const std::string& name, const OptionList& options);

  const ServedModel& served() const { return served_; }
  const LoadedModel& loaded() const { return *opened_.model; }
  EngineLoop& loop() { return *loop_; }
  // What answers depend on: the version, the kernels, the KV format.
  const std::string& fingerprint() const { return fingerprint_; }
  // Runs `question` between two steps. Throws ApiError if there is nobody any more to ask.
  template <class Question>
  auto ask(Question question) -> std::invoke_result_t<Question, Engine&>;

  OrderedJson info() const;
  OrderedJson stats();
  // How much of a prompt is cached, and why not more.
  OrderedJson lookup(std::string_view request);
  std::vector<float> logits(std::vector<TokenId> tokens, bool all_rows);
  void save_kv(const std::string& path);
  uint64_t load_kv(const std::string& path);

 private:
  std::vector<std::string> told_;
  cli::ModelOptions options_;
  std::string path_;
  cli::ModelOptions::Opened opened_;
  ServedModel served_;
  KvFormats formats_;
  std::string fingerprint_;
  std::unique_ptr<EngineLoop> loop_;  // last: it uses all of the above
};

[[noreturn]] void throw_closed();

template <class Question>
auto LibraryModel::ask(Question question) -> std::invoke_result_t<Question, Engine&> {
  try {
    return loop_->ask(std::move(question)).get();
  } catch (const std::future_error&) {
    throw_closed();
  }
}

}  // namespace quire::capi
