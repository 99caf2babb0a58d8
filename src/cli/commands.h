#pragma once

#include <CLI/CLI.hpp>

namespace quire::cli {

// Each adds one command to the program; its work is done in the command's callback.
void add_replay(CLI::App& app);
void add_run(CLI::App& app);
void add_chat(CLI::App& app);
void add_serve(CLI::App& app);
void add_bench(CLI::App& app);
void add_explain(CLI::App& app);
void add_inspect(CLI::App& app);
void add_template(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_grammar(CLI::App& app);
void add_embed(CLI::App& app);
void add_perplexity(CLI::App& app);
void add_kv_check(CLI::App& app);
void add_kv_heads(CLI::App& app);
void add_quantize(CLI::App& app);
void add_imatrix(CLI::App& app);
void add_synth(CLI::App& app);
void add_eval(CLI::App& app);
void add_devices(CLI::App& app);
void add_pull(CLI::App& app);
void add_list(CLI::App& app);
void add_remove(CLI::App& app);
void add_help(CLI::App& app);

}  // namespace quire::cli
