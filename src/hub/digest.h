#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace quire {

// The digest of a file whose bytes come one after the other: sha256 where it has 64 digits, what git calls a file's content
// where it has 40. OpenSSL's.
class Digest {
 public:
  // Of a file of so many bytes, to be compared with this digest.
  Digest(const std::string& expected, uint64_t bytes);
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void add(std::span<const std::byte> bytes);
  // Hexadecimal; nothing can be added afterwards.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
