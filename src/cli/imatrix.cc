#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "engine/importance_meter.h"

namespace quire::cli {
namespace {

constexpr uint32_t kPartOfText = 512;  // tokens, unless --ctx says otherwise

struct ImatrixCommand {
  ModelOptions model;
  std::string file;
  std::string out;

  void operator()() const {
    const std::string text = read_text(file);
    ModelOptions parted = model;
    if (!parted.context) parted.context = kPartOfText;
    if (parted.device == "auto") parted.device = "cpu";
    if (parted.device != "cpu")
      throw Error("{}: what matrices are multiplied with is looked at on the CPU alone: use --device cpu",
                  parted.device);
    const auto [loaded, engine, no_draft, no_predictor, no_drafter] = parted.open();
    const std::vector<TokenId> tokens = tokens_in_parts(loaded->text().tokenizer, text, engine.context);
    if (tokens.empty()) throw Error("{} has no tokens", file);
    Progress progress("reading");
    const Importance importance =
        measure_importance(loaded->engine_model(), tokens,
                           {.part_tokens = engine.context,
                            .prefill_chunk = engine.kv_cache ? engine.prefill_chunk : engine.context,
                            .kv_formats = engine.kv_formats},
                           [&](size_t done) { progress.update(done, tokens.size()); });
    const size_t parts = (tokens.size() + engine.context - 1) / engine.context;
    importance.write(out, std::filesystem::path(file).filename().string(), parts, engine.context);
    progress.clear();
    std::cerr << out << ": what " << tokens.size() << " tokens say of " << importance.entries().size()
              << " tensors\n";
    tell_unseen(importance);
  }

  static void tell_unseen(const Importance& importance) {
    size_t matrices = 0, unseen = 0;
    for (const auto& [name, entry] : importance.entries()) {
      if (entry.tokens.size() == 1) continue;
      matrices += entry.tokens.size();
      unseen += size_t(std::ranges::count(entry.tokens, 0.0f));
    }
    if (unseen > 0)
      std::cerr << unseen << " of " << matrices
                << " matrices of experts saw no token, and will be taken for average ones: a longer or more "
                   "varied text helps\n";
  }
};

}  // namespace

void add_imatrix(CLI::App& app) {
  auto command = std::make_shared<ImatrixCommand>();
  CLI::App* imatrix =
      app.add_subcommand("imatrix", "which columns of a model's matrices a text finds important");
  command->model.add_to(*imatrix);
  imatrix->add_option("file", command->file, "the text, or - for stdin")->required();
  imatrix->add_option("-o,--output", command->out, "the file to write, for quire quantize --imatrix")
      ->required();
  imatrix->callback([command] { (*command)(); });
}

}  // namespace quire::cli
