#include <charconv>
#include <iostream>
#include <iterator>
#include <sstream>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/model_options.h"

namespace quire::cli {
namespace {

struct TokenizeCommand {
  ModelChoice model;
  std::string text = "-";
  bool no_special = false;
  bool special = false;
  bool decode = false;
  bool json_lines = false;

  void operator()() const {
    const ModelText loaded = load_model_text(model.path());
    if (json_lines) {
      std::string line;
      for (size_t number = 1; std::getline(std::cin, line); ++number) {
        if (line.empty()) continue;
        const Json value = parse_json(line, fmt::format("line {}", number));
        std::cout << (decode ? decoded_line(loaded, value, number) : encoded_line(loaded, value, number))
                  << "\n";
      }
      return;
    }
    const std::string input = text == "-" ? read_text("-") : text;
    if (decode) {
      std::cout << loaded.tokenizer.decode(parse_ids(loaded, input), keep());
    } else {
      std::cout << fmt::format("{}\n", fmt::join(loaded.tokenizer.encode(input, options()), " "));
    }
  }

  EncodeOptions options() const {
    return {.add_special = !no_special, .parse_special = special, .plain = {}};
  }
  Tokenizer::Special keep() const { return special ? Tokenizer::Special::keep : Tokenizer::Special::skip; }

  std::string encoded_line(const ModelText& loaded, const Json& value, size_t number) const {
    if (!value.is_string()) throw Error("line {} is not a JSON string", number);
    return fmt::format("{}", fmt::join(loaded.tokenizer.encode(value.get<std::string>(), options()), " "));
  }

  // Each line is a list of ids, or a string of them.
  std::string decoded_line(const ModelText& loaded, const Json& value, size_t number) const {
    std::vector<TokenId> ids;
    if (value.is_string()) {
      ids = parse_ids(loaded, value.get<std::string>());
    } else if (value.is_array()) {
      for (const Json& id : value) {
        if (!id.is_number_unsigned()) throw Error("line {} has something that is not a token id", number);
        ids.push_back(checked(loaded, id.get<uint64_t>()));
      }
    } else {
      throw Error("line {} is neither a list of token ids nor a string of them", number);
    }
    const std::string text = loaded.tokenizer.decode(ids, keep());
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  static TokenId checked(const ModelText& loaded, uint64_t id) {
    if (id >= loaded.tokenizer.size()) {
      throw Error("there is no token {}: the vocabulary has {}", id, loaded.tokenizer.size());
    }
    return TokenId(id);
  }

  static std::vector<TokenId> parse_ids(const ModelText& loaded, const std::string& text) {
    std::vector<TokenId> ids;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
      uint64_t id = 0;
      const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), id);
      if (problem != std::errc() || end != word.data() + word.size())
        throw Error("'{}' is not a token id", word);
      ids.push_back(checked(loaded, id));
    }
    return ids;
  }
};

}  // namespace

void add_tokenize(CLI::App& app) {
  auto command = std::make_shared<TokenizeCommand>();
  CLI::App* tokenize = app.add_subcommand("tokenize", "text to token ids, and back");
  command->model.add_to(*tokenize);
  tokenize->add_option("text", command->text, "the text (with --decode: ids), or - for stdin")
      ->capture_default_str();
  tokenize->add_flag("--no-special", command->no_special, "do not add BOS and the like");
  tokenize->add_flag("--special", command->special,
                     "parse special tokens written in the text (with --decode: show them)");
  tokenize->add_flag("--decode", command->decode, "ids to text");
  tokenize->add_flag("--json-lines", command->json_lines,
                     "each line of stdin is a JSON string, each of stdout its ids");
  tokenize->callback([command] { (*command)(); });
}

}  // namespace quire::cli
