#include "grammar/grammar.h"

#include <iostream>

#include <time.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/grammar_flags.h"
#include "cli/model_options.h"

namespace quire::cli {
namespace {

// Of the processor, for this thread.
double microseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * double(time.tv_sec) + 1e-3 * double(time.tv_nsec);
}

struct GrammarCommand {
  ModelChoice model;
  GrammarFlags flags;
  std::string text = "-";
  bool json_lines = false;

  void operator()() const {
    const ModelText loaded = load_model_text(model.path());
    if (json_lines) {
      std::string line;
      for (size_t number = 1; std::getline(std::cin, line); ++number) {
        if (line.empty()) continue;
        std::cout << answer_line(loaded, parse_ordered_json(line, fmt::format("line {}", number))).dump()
                  << std::endl;
      }
      return;
    }
    const auto grammar = flags.grammar(loaded);
    if (!grammar) wrong_usage("one of --schema, --grammar and --regex is needed");
    const std::string asked = text == "-" ? read_text("-") : text;
    if (!grammar->accepts(asked)) throw Error("the text does not keep to the grammar");
    std::cout << "the text keeps to the grammar\n";
  }

  // A line says {"schema" or "grammar" or "regex", "texts"}; with "time" it is also told what each mask took along the first text.
  OrderedJson answer_line(const ModelText& loaded, const OrderedJson& line) const {
    using grammar::GrammarSource;
    OrderedJson answer = OrderedJson::object();
    try {
      GrammarSource source;
      if (line.contains("schema")) {
        source = {GrammarSource::Kind::json_schema, line["schema"].dump()};
      } else if (line.contains("regex")) {
        source = {GrammarSource::Kind::regex, line["regex"].get<std::string>()};
      } else {
        source = {GrammarSource::Kind::grammar, line.at("grammar").get<std::string>()};
      }
      const double begin = microseconds();
      const auto grammar = loaded.compile_grammar(source);
      answer["compile_us"] = microseconds() - begin;
      answer["accepted"] = OrderedJson::array();
      for (const OrderedJson& one : line.at("texts"))
        answer["accepted"].push_back(grammar->accepts(one.get_ref<const std::string&>()));
      if (line.contains("time") && !line["texts"].empty()) {
        answer["mask_us"] = mask_times(loaded, grammar, line["texts"][0].get<std::string>());
      }
    } catch (const Error& error) {
      answer["error"] = error.what();
    } catch (const OrderedJson::exception&) {
      answer["error"] = "a line must be {\"schema\": ..., \"texts\": [...]}";
    }
    return answer;
  }

  static OrderedJson mask_times(const ModelText& loaded, const std::shared_ptr<grammar::Grammar>& grammar,
                                const std::string& words) {
    OrderedJson times = OrderedJson::array();
    grammar::Constraint constraint(grammar);
    for (const TokenId token : loaded.tokenizer.encode(words, {.add_special = false})) {
      const double begin = microseconds();
      const auto mask = constraint.mask();
      times.push_back(microseconds() - begin);
      if (!constraint.advance(token)) break;
    }
    return times;
  }
};

}  // namespace

void add_grammar(CLI::App& app) {
  auto command = std::make_shared<GrammarCommand>();
  CLI::App* grammar =
      app.add_subcommand("grammar", "whether a text keeps to a schema, grammar or regular expression");
  command->model.add_to(*grammar);
  command->flags.add_to(*grammar);
  grammar->add_option("text", command->text, "the text, or - for stdin")->capture_default_str();
  grammar->add_flag(
      "--json-lines", command->json_lines,
      "each line of stdin is {\"schema\": ..., \"texts\": [...]}, each of stdout what became of it");
  grammar->callback([command] { (*command)(); });
}

}  // namespace quire::cli
