#include "model/synth.h"

#include <iostream>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/progress.h"

namespace quire::cli {
namespace {

struct SynthCommand {
  std::string shape;
  std::string type = "q4_0";
  std::string out;

  void operator()() const {
    const SynthShape& measures = synth_shape(shape);
    const TypeMix mix(type);
    ThreadPool pool(usable_cpus());
    Progress progress("writing " + out);
    write_synthetic_model(measures, mix, out, pool,
                          [&](size_t done, size_t total) { progress.update(done, total); });
  }
};

}  // namespace

void add_synth(CLI::App& app) {
  auto command = std::make_shared<SynthCommand>();
  std::vector<std::string> shapes;
  for (const SynthShape& shape : synth_shapes()) shapes.push_back(shape.name);
  CLI::App* synth = app.add_subcommand("synth", "a model file with random weights, to measure speed with");
  synth->add_option("--shape", command->shape, "the measures of a known model")
      ->required()
      ->check(CLI::IsMember(shapes));
  synth->add_option("--type", command->type, "q4_0, q4_k_m, q8_0, f16, bf16, ...")->capture_default_str();
  synth->add_option("-o,--output", command->out, "the file to write")->required();
  synth->callback([command] { (*command)(); });
}

}  // namespace quire::cli
