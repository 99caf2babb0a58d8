#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iostream>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/house.h"
#include "cli/model_options.h"
#include "hub/stored_models.h"
#include "model/model_spec.h"

namespace quire::cli {
namespace {

// Keeps a file's time of last use where looking at it would change it.
class SameTime {
 public:
  explicit SameTime(const std::string& path) : path_(path) {
    struct stat status {};
    known_ = ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
    read_ = status.st_atim;
  }
  ~SameTime() {
    const timespec times[2] = {read_, {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
    // Of a file of somebody else's it cannot be kept.
    if (known_) (void)::utimensat(AT_FDCWD, path_.c_str(), times, 0);
  }
  SameTime(const SameTime&) = delete;
  SameTime& operator=(const SameTime&) = delete;

 private:
  std::string path_;
  bool known_ = false;
  timespec read_{};
};

bool can_be_read(const std::string& path) {
  const SameTime same(path);
  try {
    read_model_spec(*open_model_file(path));
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string when(int64_t seconds) {
  if (seconds == 0) return "";
  const int64_t days = (int64_t(std::time(nullptr)) - seconds) / 86'400;
  if (days <= 0) return "today";
  if (days == 1) return "yesterday";
  return fmt::format("{} days ago", days);
}

struct ListCommand {
  bool json = false;

  void operator()() const {
    std::vector<StoredEntry> entries;
    if (house_has("house.gguf")) {
      const std::string path = house_path("house.gguf");
      entries.push_back({"house", path, uint64_t(std::filesystem::file_size(path)), last_used(path)});
    }
    const HubPlaces places = HubPlaces::of_this_process();
    size_t others = 0;
    for (StoredEntry& entry : stored_models(places)) {
      if (can_be_read(entry.path))
        entries.push_back(std::move(entry));
      else
        ++others;
    }
    if (json) {
      print_json(entries);
      return;
    }
    size_t width = 4;
    for (const StoredEntry& entry : entries) width = std::max(width, entry.name.size());
    fmt::print("{:<{}}  {:>10}  {}\n", "name", width, "size", "last used");
    for (const StoredEntry& entry : entries)
      fmt::print("{:<{}}  {:>10}  {}\n", entry.name, width, human_bytes(entry.bytes), when(entry.last_used));
    if (others > 0)
      std::cerr << counted(others, "more model") << " in " << places.cache.string() << " and "
                << places.ollama.string() << " " << (others == 1 ? "is" : "are")
                << " of kinds that quire does not read\n";
  }

  static void print_json(const std::vector<StoredEntry>& entries) {
    OrderedJson list = OrderedJson::array();
    for (const StoredEntry& entry : entries)
      list.push_back({{"name", entry.name},
                      {"path", entry.path},
                      {"bytes", entry.bytes},
                      {"last_used", entry.last_used > 0 ? OrderedJson(entry.last_used) : OrderedJson()}});
    fmt::print("{}\n", list.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
  }
};

}  // namespace

void add_list(CLI::App& app) {
  auto command = std::make_shared<ListCommand>();
  CLI::App* list = app.add_subcommand(
      "list",
      "the models that are here, by the names that -m takes: house, the Hugging Face cache's, Ollama's");
  list->add_flag("--json", command->json,
                 "one list of objects {name, path, bytes, last_used}, seconds since 1970");
  list->callback([command] { (*command)(); });
}

}  // namespace quire::cli
