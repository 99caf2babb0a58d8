#pragma once

#include <filesystem>
#include <optional>
#include <span>

#include "hub/digest.h"
#include "hub/repo_listing.h"

namespace quire {

// A file of the cache that is on its way: BLOB.incomplete beside its later name, as Hugging Face's own programs have it. What
// is there already is kept and counted in; whatever ends the program, the next goes on from there. Held under the
// blob's lock.
class PartialBlob {
 public:
  // Reads what is there, for the digest. Throws Error if the disk does not let it.
  PartialBlob(const std::filesystem::path& blob, const RepoFile& file);
  ~PartialBlob();
  PartialBlob(const PartialBlob&) = delete;
  PartialBlob& operator=(const PartialBlob&) = delete;

  uint64_t size() const { return size_; }
  uint64_t missing() const { return file_.bytes - size_; }
  // Throws Error if the disk does not take it, or if it is more than the file has.
  void append(std::span<const std::byte> bytes);
  void start_again();
  // REQUIRES: nothing is missing. Gives it its name, or, if it is not what was promised, removes it and returns false.
  [[nodiscard]] bool finish();

  // How much of it is there, for whoever plans.
  static uint64_t size_of(const std::filesystem::path& blob);

 private:
  void read_what_is_there();
  [[noreturn]] void fail() const;

  std::filesystem::path blob_, path_;
  RepoFile file_;
  int handle_ = -1;
  uint64_t size_ = 0;
  std::optional<Digest> digest_;
};

}  // namespace quire
