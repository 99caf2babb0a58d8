#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "cli/commands.h"

namespace {

constexpr int kRuntimeError = 1;
constexpr int kWrongUsage = 2;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("quire: runs large language models, and shows what it does.", "quire");
  app.set_version_flag("--version", "quire " QUIRE_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  quire::cli::add_run(app);
  quire::cli::add_chat(app);
  quire::cli::add_serve(app);
  quire::cli::add_replay(app);
  quire::cli::add_bench(app);
  quire::cli::add_explain(app);
  quire::cli::add_inspect(app);
  quire::cli::add_template(app);
  quire::cli::add_tokenize(app);
  quire::cli::add_grammar(app);
  quire::cli::add_embed(app);
  quire::cli::add_perplexity(app);
  quire::cli::add_kv_check(app);
  quire::cli::add_kv_heads(app);
  quire::cli::add_quantize(app);
  quire::cli::add_imatrix(app);
  quire::cli::add_synth(app);
  quire::cli::add_eval(app);
  quire::cli::add_devices(app);
  quire::cli::add_pull(app);
  quire::cli::add_list(app);
  quire::cli::add_remove(app);
  quire::cli::add_help(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  } catch (const quire::Error& error) {
    std::fprintf(stderr, "quire: %s\n", error.what());
    return kRuntimeError;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "quire: there is not enough memory for this\n");
    return kRuntimeError;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quire: %s\n", error.what());
    return kRuntimeError;
  }
  return 0;
}
