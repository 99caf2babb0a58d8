#include "cli/kv_remote_flags.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/error.h"
#include "cli/model_options.h"
#include "remote/redis_store.h"
#include "remote/store_address.h"
#include "remote/store_key.h"

namespace quire::cli {
namespace {

constexpr std::chrono::milliseconds kFirstLook{1200};

void warn_if_others_may_read_key(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if ((status.st_mode & (S_IRGRP | S_IROTH)) != 0)
    fmt::print(stderr, "warning: others than its owner may read the key in {}: chmod 600 {}\n", path, path);
}

}  // namespace

void KvRemoteFlags::add_to(CLI::App& command) {
  command
      .add_option("--kv-remote", address_,
                  "a Redis in which servers of the same model share computed pages, e.g. "
                  "redis://:PASSWORD@HOST:6379/0 or "
                  "redis+unix:///PATH; prompts and pages cross the network as they are")
      ->envname("QUIRE_KV_REMOTE");
  command.add_option(
      "--kv-remote-key-file", key_file_,
      "a file with the key of all servers that share it, 16 bytes or more: without it whoever can write "
      "to the store can forge pages");
  command.add_option(
      "--kv-remote-queue", queue_,
      "memory for pages that wait to be sent there, e.g. 256M (the default); more are dropped");
}

void KvRemoteFlags::check() {
  if (address_.empty()) {
    if (!key_file_.empty() || !queue_.empty())
      wrong_usage("--kv-remote-key-file and --kv-remote-queue need --kv-remote URL");
    return;
  }
  if (!queue_.empty()) remote_.queue_bytes = parse_size(queue_);
  if (remote_.queue_bytes == 0) wrong_usage("--kv-remote-queue must not be 0");
  remote_.store = open_redis(StoreAddress::parse(address_));
  std::vector<std::byte> key;
  if (!key_file_.empty()) {
    warn_if_others_may_read_key(key_file_);
    key = read_store_key(key_file_);
  }
  remote_.mac = make_page_mac(key);
  // Salts are made under a secret: where it is this server's own, nobody else would find what is under one.
  remote_.salted = remote_.mac->is_secret();
}

void KvRemoteFlags::apply(EngineOptions& engine, ServiceOptions& service) const {
  if (address_.empty()) return;
  if (!engine.kv_cache || !engine.sharing)
    wrong_usage("--kv-remote keeps what the KV cache has computed: it cannot be without the cache");
  engine.remote = remote_;
  if (remote_.salted) service.salt_secret = salt_secret(*remote_.mac);
}

std::string KvRemoteFlags::describe(const Engine& engine, const ServiceOptions& service) const {
  if (engine.remote() == nullptr) return "";
  RemoteTier& remote = *engine.remote();
  remote.look(kFirstLook);
  const RemoteTier::Stats stats = remote.stats();
  std::string text =
      fmt::format("KV store {}: {}\n", remote.place(),
                  stats.problem.empty() ? "it answers" : stats.problem + "; it is tried again later");
  if (!StoreAddress::parse(address_).is_local())
    text +=
        "  prompts, answers and their pages cross the network as they are; a tunnel such as stunnel encrypts "
        "them\n";
  if (key_file_.empty()) {
    text +=
        "  no --kv-remote-key-file: whoever can write to this store can forge pages, and with them answers; "
        "keep it where only "
        "servers reach it\n";
    if (!service.api_keys.empty() && !service.share_prefixes)
      text +=
          "  and with API keys nothing goes there: a prompt is its key's own, and no other server could tell "
          "whose\n";
  }
  return text;
}

}  // namespace quire::cli
