#include <algorithm>
#include <iostream>
#include <iterator>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "engine/pooled_rows.h"

namespace quire::cli {
namespace {

constexpr uint32_t kTextsAtOnce =
    64;  // that the engine is given; it computes as many of them at a time as it can

struct EmbedCommand {
  ModelOptions model;
  std::vector<std::string> texts;
  std::string pooling;
  uint32_t dimensions = 0;
  bool json = false;

  Pooling pooling_of(const LoadedModel& loaded) const {
    const std::optional<Pooling> said =
        pooling.empty() ? said_pooling(loaded.file()) : std::optional(pooling_from_name(pooling));
    return said.value_or(Pooling::last);
  }

  std::vector<std::string> all_texts() const {
    std::vector<std::string> all;
    for (const std::string& text : texts) {
      if (text != "-") {
        all.push_back(text);
        continue;
      }
      for (std::string line; std::getline(std::cin, line);) all.push_back(std::move(line));
    }
    return all;
  }

  void operator()() {
    model.max_sequences = 16;
    const std::vector<std::string> all = all_texts();
    ModelOptions::Opened opened = model.open();
    const LoadedModel& loaded = *opened.model;
    if (dimensions > loaded.spec().dim)
      wrong_usage("--dimensions is {}, but the model's vectors have {} numbers", dimensions,
                  loaded.spec().dim);
    const Pooling how = pooling_of(loaded);
    const std::unique_ptr<Engine> engine = opened.make_engine();
    for (size_t first = 0; first < all.size(); first += kTextsAtOnce)
      embed(std::span(all).subspan(first, std::min<size_t>(kTextsAtOnce, all.size() - first)), how, loaded,
            *engine);
  }

  void embed(std::span<const std::string> some, Pooling how, const LoadedModel& loaded,
             Engine& engine) const {
    std::vector<std::vector<float>> vectors(some.size());
    std::vector<size_t> tokens;
    for (size_t i = 0; i < some.size(); ++i) {
      Request request;
      request.prompt = loaded.text().tokenizer.encode(some[i]);
      tokens.push_back(request.prompt.size());
      request.embedding = {.pooling = how, .on_vector = [&vectors, i](std::vector<float> vector) {
                             vectors[i] = std::move(vector);
                           }};
      engine.submit(std::move(request));
    }
    while (engine.step()) {
    }
    for (size_t i = 0; i < some.size(); ++i) {
      if (vectors[i].empty()) throw Error("text {} found no room in the KV cache", i + 1);
      print(as_unit(std::move(vectors[i]), dimensions), tokens[i], how);
    }
  }

  void print(const std::vector<float>& vector, size_t tokens, Pooling how) const {
    std::string line;
    for (const float value : vector)
      fmt::format_to(std::back_inserter(line), "{}{}", line.empty() ? "" : json ? "," : " ", value);
    if (json)
      line = fmt::format(R"({{"tokens":{},"pooling":"{}","embedding":[{}]}})", tokens, name(how), line);
    std::cout << line << "\n";
  }
};

}  // namespace

void add_embed(CLI::App& app) {
  auto command = std::make_shared<EmbedCommand>();
  CLI::App* embed =
      app.add_subcommand("embed", "texts as vectors of length 1, one a line: what they mean to the model");
  command->model.add_to(*embed);
  embed->add_option("text", command->texts, "the texts; - for the lines of stdin")->required();
  embed
      ->add_option("--pooling", command->pooling,
                   "of the tokens' vectors: last, mean or cls (default: what the model says, else last)")
      ->check(CLI::IsMember({"last", "mean", "cls"}));
  embed->add_option("--dimensions", command->dimensions,
                    "the first so many numbers alone, for models that are made for it (0: all)");
  embed->add_flag("--json", command->json, "a JSON object for each text");
  embed->callback([command] { (*command)(); });
}

}  // namespace quire::cli
