#include "hub/digest.h"

#include <array>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/check.h"
#include "base/error.h"
#include "base/late_library.h"

namespace quire {
namespace {

// Opened when something is fetched, as libcurl is, which brings it along.
struct CryptoLibrary {
  LateLibrary file{"libcrypto.so." + std::to_string(OPENSSL_SHLIB_VERSION),
                   "it is what checks models that are fetched; install OpenSSL's library (apt-get install "
                   "libssl3)"};
  decltype(::EVP_MD_CTX_new)* make = file.function<decltype(::EVP_MD_CTX_new)>("EVP_MD_CTX_new");
  decltype(::EVP_MD_CTX_free)* free = file.function<decltype(::EVP_MD_CTX_free)>("EVP_MD_CTX_free");
  decltype(::EVP_sha1)* sha1 = file.function<decltype(::EVP_sha1)>("EVP_sha1");
  decltype(::EVP_sha256)* sha256 = file.function<decltype(::EVP_sha256)>("EVP_sha256");
  decltype(::EVP_DigestInit_ex)* begin = file.function<decltype(::EVP_DigestInit_ex)>("EVP_DigestInit_ex");
  decltype(::EVP_DigestUpdate)* add = file.function<decltype(::EVP_DigestUpdate)>("EVP_DigestUpdate");
  decltype(::EVP_DigestFinal_ex)* finish =
      file.function<decltype(::EVP_DigestFinal_ex)>("EVP_DigestFinal_ex");
};

const CryptoLibrary& crypto_library() {
  static const CryptoLibrary library;
  return library;
}

}  // namespace

struct Digest::State {
  const CryptoLibrary& library = crypto_library();
  EVP_MD_CTX* context = library.make();
  ~State() { library.free(context); }
};

Digest::Digest(const std::string& expected, uint64_t bytes) : state_(std::make_unique<State>()) {
  const bool git = expected.size() == 40;
  const CryptoLibrary& library = state_->library;
  if (!state_->context || !library.begin(state_->context, git ? library.sha1() : library.sha256(), nullptr))
    throw Error("this machine's OpenSSL does not compute {}", git ? "SHA-1" : "SHA-256");
  if (!git) return;
  const std::string head = fmt::format("blob {}", bytes);
  add(std::as_bytes(std::span(head.c_str(), head.size() + 1)));  // with its zero
}

Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::add(std::span<const std::byte> bytes) {
  CHECK(state_->library.add(state_->context, bytes.data(), bytes.size()));
}

std::string Digest::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  CHECK(state_->library.finish(state_->context, bytes.data(), &size));
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

}  // namespace quire
