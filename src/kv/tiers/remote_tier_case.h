#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "kv/tiers/page_store.h"
#include "kv/tiers/remote_tier.h"

// A store in this process that does whatever a test wants, and tags that are quick to make.

namespace quire {

class TestMac : public PageMac {
 public:
  explicit TestMac(uint64_t key = 1) : key_(key) {}
  StoreTag of(std::span<const std::span<const std::byte>> parts) const override {
    StoreTag tag{};
    for (uint64_t word = 0; word < sizeof(tag) / 8; ++word) {
      XXH3_state_t state;
      XXH3_64bits_reset_withSeed(&state, key_ * 4 + word);
      for (const auto& part : parts) XXH3_64bits_update(&state, part.data(), part.size());
      const uint64_t sum = XXH3_64bits_digest(&state);
      std::memcpy(tag.data() + 8 * word, &sum, sizeof(sum));
    }
    return tag;
  }
  bool is_secret() const override { return true; }

 private:
  uint64_t key_;
};

class MemoryStore : public PageStore {
 public:
  using Value = std::vector<std::byte>;

  std::unique_ptr<StoreConnection> connect() override {
    const std::lock_guard lock(mutex_);
    ++connections;
    if (down) throw Error("the store is down");
    return std::make_unique<Connection>(*this);
  }
  const std::string& place() const override { return place_; }

  // Any thread.
  void set_down(bool to) {
    const std::lock_guard lock(mutex_);
    down = to;
  }
  // Nobody gets an answer until it is opened again.
  void close() {
    const std::lock_guard lock(mutex_);
    closed = true;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed = false;
    changed_.notify_all();
  }
  template <class Work>
  auto with(Work work) {
    const std::lock_guard lock(mutex_);
    return work(*this);
  }
  size_t size() {
    return with([](MemoryStore& store) { return store.values.size(); });
  }

  // Under `with`.
  std::map<std::string, Value> values;
  bool down = false, closed = false, full = false;
  uint64_t connections = 0, questions = 0, fetched = 0;
  std::function<void(std::string_view name, Value&)> lie;  // what a value becomes on its way to whoever asks

 private:
  class Connection : public StoreConnection {
   public:
    explicit Connection(MemoryStore& store) : store_(store) {}
    std::vector<bool> has(std::span<const std::string> names) override {
      std::unique_lock lock(store_.mutex_);
      store_.wait(lock);
      std::vector<bool> there;
      for (const std::string& name : names) there.push_back(store_.values.contains(name));
      store_.questions += names.size();
      return there;
    }
    void ask(std::span<const std::string> names) override {
      asked_.insert(asked_.end(), names.begin(), names.end());
    }
    std::optional<StoreValue> take(size_t most) override {
      std::unique_lock lock(store_.mutex_);
      store_.wait(lock);
      const std::string name = asked_.front();
      asked_.erase(asked_.begin());
      const auto found = store_.values.find(name);
      if (found == store_.values.end()) return std::nullopt;
      ++store_.fetched;
      Value value = found->second;
      if (store_.lie) store_.lie(name, value);
      if (value.size() > most) throw Error("it sends more than it was asked for");
      StoreValue given{.bytes = std::make_shared<std::byte[]>(value.size() + 1), .size = value.size()};
      std::memcpy(given.bytes.get(), value.data(), value.size());
      return given;
    }
    std::vector<bool> put(std::span<const Put> puts, std::string& refusal) override {
      std::unique_lock lock(store_.mutex_);
      store_.wait(lock);
      for (const Put& put : puts) {
        if (store_.full) break;
        Value& value = store_.values[put.name];
        value.clear();
        for (const auto& part : put.parts) value.insert(value.end(), part.begin(), part.end());
      }
      if (store_.full) refusal = "there is no room";
      return std::vector<bool>(puts.size(), !store_.full);
    }

   private:
    MemoryStore& store_;
    std::vector<std::string> asked_;
  };

  void wait(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return !closed; });
    if (down) throw Error("the store has gone");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string place_ = "memory";
};

inline RemoteTierOptions remote_options(std::shared_ptr<MemoryStore> store, uint64_t key = 1) {
  return {.store = std::move(store),
          .mac = std::make_shared<TestMac>(key),
          .identity = "a model",
          .pauses = {.first = std::chrono::milliseconds(5), .longest = std::chrono::milliseconds(20)}};
}

}  // namespace quire
