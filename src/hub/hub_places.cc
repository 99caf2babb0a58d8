#include "hub/hub_places.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "hub/url.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestToken = 1024;

std::string value_of(const HubPlaces::Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

bool is_yes(std::string value) {
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return char(std::toupper(c)); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string trimmed(std::string text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && is_space(text.back())) text.pop_back();
  text.erase(text.begin(), std::ranges::find_if_not(text, is_space));
  return text;
}

std::string read_token(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return {};
  std::ifstream file(path, std::ios::binary);
  std::string text(kLongestToken + 2, '\0');
  file.read(text.data(), std::streamsize(text.size()));
  text.resize(size_t(file.gcount()));
  return trimmed(text);
}

fs::path expanded(const std::string& path, const std::string& home) {
  if (path == "~" || path.starts_with("~/")) return home + path.substr(1);
  return path;
}

void find_token(const HubPlaces::Environment& environment, const fs::path& hf_home, const std::string& home,
                HubPlaces& places) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    places.token = trimmed(value_of(environment, name));
    places.token_from = name;
    if (!places.token.empty()) break;
  }
  if (places.token.empty() && !is_yes(value_of(environment, "HF_HUB_DISABLE_IMPLICIT_TOKEN"))) {
    const std::string named = value_of(environment, "HF_TOKEN_PATH");
    const fs::path file = named.empty() ? hf_home / "token" : expanded(named, home);
    places.token = read_token(file);
    places.token_from = file.string();
  }
  if (places.token.empty()) places.token_from.clear();
  // It becomes a line of a request.
  if (places.token.size() > kLongestToken ||
      !std::ranges::all_of(places.token, [](char c) { return c > ' ' && c <= '~'; }))
    throw Error("what {} holds is not a token: one has no spaces and begins with hf_", places.token_from);
}

}  // namespace

HubPlaces HubPlaces::from(const Environment& environment) {
  HubPlaces places;
  const std::string home = value_of(environment, "HOME");
  const std::string usual_cache = value_of(environment, "XDG_CACHE_HOME");
  const fs::path caches = usual_cache.empty() ? fs::path(home) / ".cache" : fs::path(usual_cache);
  const std::string given_home = value_of(environment, "HF_HOME");
  const fs::path hf_home = given_home.empty() ? caches / "huggingface" : expanded(given_home, home);
  places.cache = hf_home / "hub";
  for (const char* name : {"HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"})
    if (const std::string cache = value_of(environment, name); !cache.empty())
      places.cache = expanded(cache, home);

  places.endpoint = value_of(environment, "HF_ENDPOINT");
  if (places.endpoint.empty()) places.endpoint = "https://huggingface.co";
  while (places.endpoint.ends_with('/')) places.endpoint.pop_back();
  if (!parse_url(places.endpoint))
    throw Error("HF_ENDPOINT is '{}', which is not an address; one looks like https://huggingface.co",
                printable(places.endpoint));
  places.offline = is_yes(value_of(environment, "HF_HUB_OFFLINE")) ||
                   is_yes(value_of(environment, "TRANSFORMERS_OFFLINE"));
  find_token(environment, hf_home, home, places);

  const std::string ollama = value_of(environment, "OLLAMA_MODELS");
  places.ollama = ollama.empty() ? fs::path(home) / ".ollama" / "models" : expanded(ollama, home);
  // Where Ollama runs as a service of its own, its user's home is here.
  std::error_code ignored;
  if (const fs::path service = "/usr/share/ollama/.ollama/models";
      ollama.empty() && !fs::exists(places.ollama, ignored) && fs::exists(service, ignored))
    places.ollama = service;
  return places;
}

HubPlaces HubPlaces::of_this_process() {
  return from([](const char* name) { return std::getenv(name); });
}

}  // namespace quire
