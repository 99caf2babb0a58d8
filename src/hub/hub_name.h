#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire {

// A model on the hub as people write it: hf:org/name[@REVISION][:WHICH]. Whatever is in here is safe as part of a path and
// of an address.
struct HubName {
  std::string repo;               // "org/name"; of a few old models "name" alone
  std::string revision = "main";  // a branch, a tag, "refs/pr/1" or a commit
  std::string which;              // a type ("Q4_K_M"), "safetensors", or a file's name; empty: what fits

  // With hf: or without. Throws Error with what is wrong.
  static HubName parse(std::string_view text);
  std::string text() const;  // as one writes it
  // What the shared cache calls the repository: "models--org--name".
  std::string folder() const;
  bool is_commit() const;  // the revision is a commit itself

  auto operator<=>(const HubName&) const = default;
};

// A plain "org/name", if it looks like nothing else: no file here could be meant by it.
std::optional<HubName> plain_hub_name(const std::string& text);

// Forty hexadecimal digits, as git writes a commit.
bool is_commit_hash(std::string_view text);

// May a file of that name, which came from outside, be made below a folder of ours? Only plain names may: no "..", no
// root, no characters that a terminal or another system understands differently.
bool is_safe_path(std::string_view path);

}  // namespace quire
