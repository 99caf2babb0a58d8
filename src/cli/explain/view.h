#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/model_options.h"
#include "explain/attention.h"

namespace quire::cli {

// What the user asked `quire explain` for.
struct ExplainOptions {
  ModelOptions model;
  std::string view = "phases";
  std::string prompt;
  uint32_t doc = 0;
  std::optional<uint32_t> generated;
  float temperature = 0;
  uint64_t seed = 1;
  std::vector<uint32_t> chunks;  // of --prefill-chunk: one, or in the view `chunks` several
  double off_seconds = 20;
  uint32_t requests = 12;
  uint32_t at_once = 8;
  AttentionChoice attention;
  bool raw = false;
  bool json = false;
  std::string svg;
};

// What a view works on.
struct ExplainInput {
  const ExplainOptions& options;
  const LoadedModel& model;
  EngineOptions engine;
  std::vector<TokenId> prompt;
  uint32_t generated = 0;                        // tokens of the answer
  std::optional<SamplingOptions> sampling = {};  // of a request that was served; nothing: as the options say
  uint32_t choice = 0;

  // Goes on past the model's end tokens: what is compared must come to the same length.
  Request request() const;
};

// A view in its three forms.
struct Shown {
  std::string table;
  OrderedJson json;
  std::string svg;
};

std::vector<std::string> view_names();
// Prints the view that the options name, and draws it if they say where to.
void show_view(const ExplainInput& input);

Shown show_phases(const ExplainInput& input);
Shown show_steps(const ExplainInput& input);
Shown show_why_kv(const ExplainInput& input);
Shown show_chunks(const ExplainInput& input);
Shown show_batching(const ExplainInput& input);
Shown show_attention(const ExplainInput& input);

// "1,124,750", and "47,036 G" where digits would say no more.
std::string exact_count(double value);
std::string count_text(double value);
// The text of some tokens, special ones too: valid UTF-8, and nothing that a terminal would obey.
std::string token_text(const Tokenizer& tokenizer, std::span<const TokenId> tokens);
// At most `width` characters of a text, the middle left out where there are more; filled with spaces in a column.
std::string shortened(const std::string& text, size_t width);
std::string padded(const std::string& text, size_t width);

}  // namespace quire::cli
