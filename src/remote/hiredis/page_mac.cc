#include <array>
#include <string>
#include <string_view>

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "base/check.h"
#include "base/error.h"
#include "base/late_library.h"
#include "remote/store_key.h"

namespace quire {
namespace {

constexpr size_t kKeyBytes = 64;

struct MacLibrary {
  LateLibrary file{"libcrypto.so." + std::to_string(OPENSSL_SHLIB_VERSION),
                   "it makes the tags of pages in a shared store; install OpenSSL's library (apt-get install "
                   "libssl3)"};
  decltype(::EVP_MAC_fetch)* fetch = file.function<decltype(::EVP_MAC_fetch)>("EVP_MAC_fetch");
  decltype(::EVP_MAC_free)* give_back = file.function<decltype(::EVP_MAC_free)>("EVP_MAC_free");
  decltype(::EVP_MAC_CTX_new)* make = file.function<decltype(::EVP_MAC_CTX_new)>("EVP_MAC_CTX_new");
  decltype(::EVP_MAC_CTX_free)* free = file.function<decltype(::EVP_MAC_CTX_free)>("EVP_MAC_CTX_free");
  decltype(::EVP_MAC_init)* begin = file.function<decltype(::EVP_MAC_init)>("EVP_MAC_init");
  decltype(::EVP_MAC_update)* add = file.function<decltype(::EVP_MAC_update)>("EVP_MAC_update");
  decltype(::EVP_MAC_final)* finish = file.function<decltype(::EVP_MAC_final)>("EVP_MAC_final");
  decltype(::EVP_Digest)* digest = file.function<decltype(::EVP_Digest)>("EVP_Digest");
  decltype(::EVP_sha512)* sha512 = file.function<decltype(::EVP_sha512)>("EVP_sha512");
};

const MacLibrary& mac_library() {
  static const MacLibrary library;
  return library;
}

class Blake2Mac : public PageMac {
 public:
  explicit Blake2Mac(std::span<const std::byte> key) : is_secret_(!key.empty()) {
    constexpr std::string_view kKnown = "quire: a key that everybody knows";
    const std::span<const std::byte> from = is_secret_ ? key : std::as_bytes(std::span(kKnown));
    unsigned size = 0;
    // Keys of any length, in the length that BLAKE2b takes.
    if (!library_.digest(from.data(), from.size(), key_.data(), &size, library_.sha512(), nullptr) ||
        size != key_.size())
      throw Error("this machine's OpenSSL does not compute SHA-512");
    mac_ = library_.fetch(nullptr, "BLAKE2BMAC", nullptr);
    if (mac_ == nullptr)
      throw Error("this machine's OpenSSL has no BLAKE2b, which makes the tags of pages in a store");
  }

  ~Blake2Mac() override { library_.give_back(mac_); }
  Blake2Mac(const Blake2Mac&) = delete;
  Blake2Mac& operator=(const Blake2Mac&) = delete;

  StoreTag of(std::span<const std::span<const std::byte>> parts) const override {
    StoreTag tag;
    size_t size = tag.size();
    const OSSL_PARAM settings[] = {
        {OSSL_MAC_PARAM_SIZE, OSSL_PARAM_UNSIGNED_INTEGER, &size, sizeof(size), OSSL_PARAM_UNMODIFIED},
        {nullptr, 0, nullptr, 0, 0}};
    EVP_MAC_CTX* const context = library_.make(mac_);
    bool good = context != nullptr && library_.begin(context, key_.data(), key_.size(), settings);
    for (const std::span<const std::byte> part : parts)
      good = good && library_.add(context, reinterpret_cast<const unsigned char*>(part.data()), part.size());
    size_t written = 0;
    good = good &&
           library_.finish(context, reinterpret_cast<unsigned char*>(tag.data()), &written, tag.size()) &&
           written == tag.size();
    library_.free(context);
    if (!good) throw Error("OpenSSL did not make the tag of a page");
    return tag;
  }
  bool is_secret() const override { return is_secret_; }

 private:
  const MacLibrary& library_ = mac_library();
  bool is_secret_;
  std::array<unsigned char, kKeyBytes> key_{};
  EVP_MAC* mac_ = nullptr;
};

}  // namespace

std::shared_ptr<const PageMac> make_page_mac(std::span<const std::byte> key) {
  return std::make_shared<Blake2Mac>(key);
}

}  // namespace quire
