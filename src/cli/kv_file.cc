#include "cli/kv_file.h"

#include <iostream>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/model_options.h"

namespace quire::cli {
namespace {

constexpr size_t kSliceBytes = size_t(16) << 20;  // that are copied before they are written

std::string figures(const SnapshotFigures& done, Clock::time_point begin) {
  return fmt::format("{} in {}, {} in {:.3f} s", counted(done.tokens, "token"), counted(done.pages, "page"),
                     human_bytes(done.bytes), milliseconds_between(begin, Clock::now()) / 1000);
}

}  // namespace

void load_kv(Engine& engine, const LoadedModel& model, const std::string& path) {
  const Clock::time_point begin = Clock::now();
  try {
    const SnapshotFigures done =
        restore_snapshot(engine.kv(), engine.make_moves(), model.kv_identity(), path);
    fmt::print(stderr, "[restored {} from {}]\n", figures(done, begin), path);
    if (done.tokens_left_out > 0)
      fmt::print(stderr, "[no page was free for {} more of it: --kv-memory or --ctx makes room]\n",
                 counted(done.tokens_left_out, "token"));
  } catch (const Error& error) {
    fmt::print(stderr, "[warning: nothing was restored, all is computed anew: {}]\n", error.what());
  }
}

void save_kv(Engine& engine, const LoadedModel& model, const SaltedTokens& tokens, const std::string& path) {
  const Clock::time_point begin = Clock::now();
  KvExport along(engine.kv(), tokens);
  const SnapshotFigures done = save_snapshot(path, model.kv_identity(), engine.kv().layout(),
                                             [&] { return along.take(kSliceBytes, engine.make_moves()); });
  fmt::print(stderr, "[saved {} to {}]\n", figures(done, begin), path);
}

}  // namespace quire::cli
