#pragma once

#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "base/keyed_hash.h"
#include "engine/engine.h"
#include "server/service.h"

namespace quire::cli {

// The store of pages that servers share.
struct KvRemoteFlags {
  void add_to(CLI::App& command);
  bool is_given() const { return !address_.empty(); }
  // Before a model is loaded: throws what is wrong with the flags, or what is missing on this machine.
  void check();
  // Puts the store into the options, and the secret of its key into the service's. Nothing happens if no store was asked for.
  void apply(EngineOptions& engine, ServiceOptions& service) const;
  // What it is and what that means, in lines; whether it answers is waited for, but not long.
  std::string describe(const Engine& engine, const ServiceOptions& service) const;

 private:
  std::string address_, key_file_, queue_;
  RemoteTierOptions remote_;
};

}  // namespace quire::cli
