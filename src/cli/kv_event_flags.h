#pragma once

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "cluster/kv_event_publisher.h"
#include "engine/engine.h"
#include "server/service.h"

namespace quire::cli {

// What a server tells routers of its cache.
struct KvEventFlags {
  void add_to(CLI::App& command);
  // Wrong usage, or an address that strangers reach without a word that they may: throws.
  void check() const;
  // What the engine tells from now on; null: nobody asked. It must outlive the engine.
  std::unique_ptr<KvEventPublisher> publish(Engine& engine) const;
  // Who can read what, in a line.
  std::string describe(const KvEventPublisher& publisher, const ServiceOptions& service) const;

 private:
  KvEventOptions options_;
  bool anyone_ = false;
};

}  // namespace quire::cli
