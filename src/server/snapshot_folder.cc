#include "server/snapshot_folder.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "openai/api_error.h"
#include "server/cache_salts.h"

namespace quire {
namespace {

constexpr size_t kSliceBytes = size_t(8)
                               << 20;  // that the engine copies between two steps: a few milliseconds
constexpr size_t kLongestName = 100;

}  // namespace

SnapshotFolder::SnapshotFolder(std::string folder, KvIdentity identity, const SnapshotLimits& limits)
    : folder_(std::move(folder)), identity_(std::move(identity)), limits_(limits) {
  if (!std::filesystem::is_directory(folder_)) throw Error("{} is not a folder for snapshots", folder_);
  secret_ = secret_of_folder(folder_);
}

uint64_t SnapshotFolder::bytes_left(const std::string& name) const {
  uint64_t files = 0, bytes = 0;
  std::error_code problem;  // of a file that went meanwhile
  for (const auto& entry : std::filesystem::directory_iterator(folder_, problem)) {
    if (!entry.is_regular_file(problem) || !is_name(entry.path().filename().string())) continue;
    if (entry.path().filename() == name) continue;  // is replaced
    ++files;
    const uint64_t size = entry.file_size(problem);
    if (!problem) bytes += size;
  }
  if (files >= limits_.files) {
    throw ApiError(
        409, "name", "too_many_snapshots",
        fmt::format("the folder has {} files, as many as may be: save under the name of one of them, "
                    "or remove one (--max-snapshots)",
                    files));
  }
  if (limits_.bytes == 0) return UINT64_MAX;
  return limits_.bytes - std::min(limits_.bytes, bytes);
}

bool SnapshotFolder::is_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::ranges::all_of(name, is_allowed);
}

SnapshotFigures SnapshotFolder::save(EngineLoop& loop, const std::string& name) const {
  CHECK(is_name(name));
  const uint64_t most_bytes = bytes_left(name);
  // Made, used and destroyed on the engine's thread.
  struct Source {
    std::unique_ptr<KvExport> nodes;
    KvLayout layout;
  };
  const auto source = std::make_shared<Source>();
  const auto take = [source](Engine& engine) {
    if (!source->nodes) {
      source->nodes = std::make_unique<KvExport>(engine.kv());
      source->layout = engine.kv().layout();
    }
    return source->nodes->take(kSliceBytes, engine.make_moves());
  };
  struct Release {
    EngineLoop& loop;
    std::shared_ptr<Source> source;
    ~Release() {
      loop.post([kept = source](Engine&) { kept->nodes.reset(); });
    }
  } release{loop, source};
  try {
    std::vector<KvNode> first = loop.ask(take).get();
    if (first.empty()) throw ApiError(409, "", "not_cached", "nothing is cached yet that could be saved");
    const auto next = [&] {
      std::vector<KvNode> nodes = first.empty() ? loop.ask(take).get() : std::exchange(first, {});
      const auto has_salt = [](const KvNode& node) { return !node.salt.is_none(); };
      if (std::ranges::any_of(nodes, has_salt)) keep_secret(folder_, secret_);
      return nodes;
    };
    return save_snapshot(path(name), identity_, source->layout, next, most_bytes);
  } catch (const std::future_error&) {
    throw ApiError(503, "", "shutting_down", "the server is shutting down");
  } catch (const Error& error) {
    throw ApiError(500, "", "not_saved", error.what());
  }
}

std::string SnapshotFolder::restore(Engine& engine, const std::string& name) const {
  CHECK(is_name(name));
  const Clock::time_point begin = Clock::now();
  try {
    const SnapshotFigures done = restore_snapshot(engine.kv(), engine.make_moves(), identity_, path(name));
    std::string text =
        fmt::format("restored {} tokens in {} pages, {:.1f} MB in {:.3f} s, from {}", done.tokens, done.pages,
                    double(done.bytes) / 1e6, milliseconds_between(begin, Clock::now()) / 1000, path(name));
    if (done.tokens_left_out > 0) text += fmt::format("; no page was free for {} more", done.tokens_left_out);
    return text;
  } catch (const Error& error) {
    return fmt::format("warning: nothing was restored, all is computed anew: {}", error.what());
  }
}

}  // namespace quire
