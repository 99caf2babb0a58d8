#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quire {

// A digest of 256 bits.
using StoreTag = std::array<std::byte, 32>;

// Makes tags that nobody else can make who does not know its key. Any thread, several at once.
class PageMac {
 public:
  virtual ~PageMac() = default;
  // Of all these bytes, one behind the other.
  virtual StoreTag of(std::span<const std::span<const std::byte>> parts) const = 0;
  // Whether there is a key. Else everybody can make them, and they tell accidents alone.
  virtual bool is_secret() const = 0;
};

// A value that a store gave, whatever it is.
struct StoreValue {
  std::shared_ptr<std::byte[]> bytes = {};
  size_t size = 0;
};

// A way to a store. One thread at a time. Everything throws Error when the store does not answer in time, or not in its language:
// then the connection is of no more use.
class StoreConnection {
 public:
  virtual ~StoreConnection() = default;

  // Which of these names have a value. No names: whether it answers.
  virtual std::vector<bool> has(std::span<const std::string> names) = 0;
  // Asks for values; each is then taken in this order. Nothing: there is none. One of more bytes than `most` is an Error.
  virtual void ask(std::span<const std::string> names) = 0;
  virtual std::optional<StoreValue> take(size_t most) = 0;
  // Gives values their names, in place of those that had them. What comes back says of each whether the store took it: a full one
  // does not, and `refusal` says why.
  struct Put {
    std::string name;
    std::vector<std::span<const std::byte>> parts;  // of the value
  };
  virtual std::vector<bool> put(std::span<const Put> values, std::string& refusal) = 0;
};

// Values by name, somewhere else, which other programs read and write as well: it may be slow, full, gone or forged.
class PageStore {
 public:
  virtual ~PageStore() = default;
  // Any thread. Throws Error.
  virtual std::unique_ptr<StoreConnection> connect() = 0;
  // Where it is, for people; without its password.
  virtual const std::string& place() const = 0;
};

}  // namespace quire
