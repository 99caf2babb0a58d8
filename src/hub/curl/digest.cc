#include "hub/digest.h"

#include <array>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/check.h"
#include "base/error.h"

namespace quire {

struct Digest::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Digest::Digest(const std::string& expected, uint64_t bytes) : state_(std::make_unique<State>()) {
  const bool git = expected.size() == 40;
  if (!state_->context || !EVP_DigestInit_ex(state_->context, git ? EVP_sha1() : EVP_sha256(), nullptr))
    throw Error("this machine's OpenSSL does not compute {}", git ? "SHA-1" : "SHA-256");
  if (!git) return;
  const std::string head = fmt::format("blob {}", bytes);
  add(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // with its zero
}

Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()));
}

std::string Digest::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  CHECK(EVP_DigestFinal_ex(state_->context, bytes.data(), &size));
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

}  // namespace quire
