#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "grammar/grammar_source.h"
#include "kv/tiers/kv_snapshot.h"

namespace quire {

// What answers were computed with: all that may change their bits.
struct RecordingHead {
  std::string version;     // of quire
  std::string model_path;  // as the server was given it
  KvIdentity identity;     // the model, its positions and the kernel set
  std::string kv;          // formats of the cache, as --kv names them
  uint32_t context = 0;
};

// One answer of a served request, and all that is needed to compute it again. Who asked is not in it, and neither is a key or a
// salt.
struct RecordedAnswer {
  std::string id;  // of the request
  uint32_t index =
      0;  // of the answer among the request's: prompts one after the other, each with its choices
  // Prompt, sampling, choice, max_tokens, stop, stop_tokens, ignore_end, pruning and budget; nothing else is kept. Its grammar is written as
  // its source, which is what comes back.
  Request request;
  std::optional<grammar::GrammarSource> grammar = {};  // what the answer kept to
  std::vector<TokenId> tokens = {};
  std::vector<float> logprobs = {};  // by token
  FinishReason finish_reason = FinishReason::none;
};

// A file of them. Whatever ends the server, what is whole can be read: parts that each have their length and a checksum.
struct Recording {
  RecordingHead head;
  std::vector<RecordedAnswer> answers;
  std::vector<size_t> damaged;  // parts that are not what was written, counted from 1
  size_t cut_bytes = 0;         // at the end, of a part that was not written to its end
};

std::vector<std::byte> head_part(const RecordingHead& head);
std::vector<std::byte> answer_part(const RecordedAnswer& answer);
// Throws Error if it is not a recording, or one whose head is damaged.
Recording read_recording(std::span<const std::byte> file);
// The same of a file. `path` may be anything.
Recording read_recording_file(const std::string& path);

}  // namespace quire
