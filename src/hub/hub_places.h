#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace quire {

// Where the hub and its cache are, and who asks: what the environment says, in the words that Hugging Face's own
// programs use.
struct HubPlaces {
  std::string endpoint = {};  // HF_ENDPOINT, else https://huggingface.co; no slash at its end
  // HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub
  std::filesystem::path cache = {};
  std::string token = {};       // of HF_TOKEN, or of the file that HF_TOKEN_PATH names or HF_HOME/token is
  std::string token_from = {};  // which of them, for people
  bool offline = false;         // HF_HUB_OFFLINE
  std::filesystem::path ollama = {};  // OLLAMA_MODELS, else Ollama's usual folder

  // As getenv: nullptr for what is not set.
  using Environment = std::function<const char*(const char*)>;
  // Throws Error for a token or an endpoint that cannot be one.
  static HubPlaces from(const Environment& environment);
  static HubPlaces of_this_process();
};

}  // namespace quire
