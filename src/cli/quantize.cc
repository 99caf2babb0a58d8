#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/progress.h"
#include "model/convert.h"

namespace quire::cli {
namespace {

struct QuantizeCommand {
  ModelChoice model;
  std::string type;
  std::string out;
  std::string imatrix;
  std::optional<uint32_t> threads;

  void operator()() const {
    const TypeMix mix(type);
    const std::string path = model.path();
    const auto file = open_model_file(path);
    std::error_code ignored;
    if (std::filesystem::equivalent(path, out, ignored))
      throw Error("{} would be written over while it is read", out);
    const ModelSpec spec = read_model_spec(*file);  // refuses what could not be run before it is written
    std::optional<Importance> importance;
    if (!imatrix.empty()) importance = Importance::read(imatrix);
    ThreadPool pool(threads.value_or(usable_cpus()));
    Progress progress("writing " + out);
    Metadata metadata = metadata_with_text(*file, spec);
    if (importance) metadata.set("quantize.imatrix.file", imatrix);
    const Converted written =
        convert_to_gguf(*file, mix, out,
                        {.metadata = std::move(metadata),
                         .layers = uint32_t(spec.layers.size()),
                         .importance = importance ? &*importance : nullptr,
                         .progress = [&](size_t done, size_t total) { progress.update(done, total); }},
                        pool);
    progress.clear();
    std::cerr << out << ": " << human_bytes(written.bytes) << " of weights as " << mix.name() << "\n";
    if (importance && written.unknown > 0)
      std::cerr << imatrix << " tells nothing of " << written.unknown << " of " << written.matrices
                << " tensors: their columns count alike\n";
  }

  static Metadata metadata_with_text(const ModelFile& file, const ModelSpec& spec) {
    Metadata metadata = file.metadata();
    const std::string folder = file.folder();
    if (folder.empty()) return metadata;  // a GGUF file's text is metadata already
    if (std::filesystem::exists(folder + "/tokenizer.json")) {
      add_text_metadata(load_model_text(file), metadata);
      return metadata;
    }
    std::cerr << folder << " has no tokenizer.json: the file will know token ids only\n";
    metadata.set("tokenizer.ggml.model", std::string("no_vocab"));
    metadata.set(spec.architecture + ".vocab_size", uint64_t(spec.vocab));
    return metadata;
  }
};

}  // namespace

void add_quantize(CLI::App& app) {
  auto command = std::make_shared<QuantizeCommand>();
  CLI::App* quantize = app.add_subcommand("quantize", "a model as a GGUF file of another type");
  command->model.add_to(*quantize);
  quantize->add_option("--type", command->type, "f32, f16, bf16, q8_0, q4_0, q4_k_m, ...")->required();
  quantize->add_option("-o,--output", command->out, "the file to write")->required();
  quantize->add_option(
      "--imatrix", command->imatrix,
      "which columns matter, as quire imatrix or llama.cpp wrote it: less is lost where it counts");
  quantize->add_option("--threads", command->threads, "threads that compute")->check(CLI::Range(1u, 1024u));
  quantize->callback([command] { (*command)(); });
}

}  // namespace quire::cli
