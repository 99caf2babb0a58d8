#include "replay/recording.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "grammar/grammar.h"
#include "replay/recording_bytes.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little,
              "recordings are little-endian and written in place");

constexpr std::string_view kMagic = "quire replay\n";
constexpr uint32_t kVersion = 2;
constexpr uint32_t kHeadPart = 1, kAnswerPart = 2;
constexpr uint32_t kMostContext = 1 << 24;
constexpr size_t kFrameBytes = 2 * sizeof(uint32_t);  // kind and length; the checksum comes after the part

std::vector<std::byte> framed(uint32_t kind, const RecordingWriter& words) {
  const std::vector<std::byte>& bytes = words.bytes();
  if (bytes.size() > UINT32_MAX)
    throw Error("an answer of {} bytes is too long to be recorded", bytes.size());
  RecordingWriter part;
  part.number(kind);
  part.number(uint32_t(bytes.size()));
  part.raw(bytes);
  part.number(uint64_t(XXH3_64bits_withSeed(bytes.data(), bytes.size(), kind)));
  return part.bytes();
}

void write_sampling(RecordingWriter& to, const SamplingOptions& sampling) {
  for (const float value :
       {sampling.temperature, sampling.top_p, sampling.min_p, sampling.typical, sampling.repetition_penalty,
        sampling.presence_penalty, sampling.frequency_penalty})
    to.number(value);
  to.number(sampling.top_k);
  to.number(sampling.seed);
  to.number(uint32_t(sampling.logit_bias.size()));
  for (const auto& [token, bias] : sampling.logit_bias) {
    to.number(token);
    to.number(bias);
  }
}

SamplingOptions read_sampling(RecordingReader& from) {
  SamplingOptions sampling;
  for (float* value : {&sampling.temperature, &sampling.top_p, &sampling.min_p, &sampling.typical,
                       &sampling.repetition_penalty, &sampling.presence_penalty, &sampling.frequency_penalty})
    *value = from.number<float>();
  sampling.top_k = from.number<uint32_t>();
  sampling.seed = from.number<uint64_t>();
  const uint32_t biases = from.count(sizeof(TokenId) + sizeof(float));
  for (uint32_t i = 0; i < biases; ++i) {
    const auto token = from.number<TokenId>();
    sampling.logit_bias.emplace_back(token, from.number<float>());
  }
  sampling.check();
  return sampling;
}

// What is kept of the prompt, a budget, or neither: 1, 2 and 0.
void write_pruning(RecordingWriter& to, const Request& request) {
  const std::optional<PruningOptions>& pruning = request.pruning;
  to.number(uint8_t(pruning ? 1 : request.budget ? 2 : 0));
  if (!pruning && request.budget) {
    to.number(uint8_t(request.budget->policy));
    to.number(request.budget->rows);
    to.number(uint64_t(request.budget->bytes));
    to.number(request.budget->pinned);
    to.number(request.budget->window);
  }
  if (!pruning) return;
  to.number(uint8_t(pruning->policy));
  to.number(pruning->share);
  to.number(pruning->tokens);
  to.number(pruning->window);
  to.number(pruning->scored);
  to.number(pruning->evaluator.layer);
  to.numbers(pruning->evaluator.heads);
}

BudgetOptions read_budget(RecordingReader& from) {
  BudgetOptions budget;
  budget.policy = kPruningPolicies[from.choice(std::size(kPruningPolicies))];
  budget.rows = from.number<uint32_t>();
  budget.bytes = size_t(from.number<uint64_t>());
  budget.pinned = from.number<uint32_t>();
  budget.window = from.number<uint32_t>();
  budget.check();
  return budget;
}

void read_pruning(RecordingReader& from, Request& request) {
  const size_t what = from.choice(3);
  if (what == 2) request.budget = read_budget(from);
  if (what != 1) return;
  PruningOptions pruning;
  pruning.policy = kPruningPolicies[from.choice(std::size(kPruningPolicies))];
  pruning.share = from.number<double>();
  pruning.tokens = from.number<uint32_t>();
  pruning.window = from.number<uint32_t>();
  pruning.scored = from.number<uint32_t>();
  pruning.evaluator.layer = from.number<uint32_t>();
  pruning.evaluator.heads = from.numbers<uint32_t>();
  pruning.check();
  pruning.check_heads();
  request.pruning = pruning;
}

RecordingHead read_head(RecordingReader from) {
  RecordingHead head;
  for (std::string* text : {&head.version, &head.model_path, &head.identity.model_name, &head.identity.model,
                            &head.identity.positions, &head.identity.kernels, &head.kv})
    *text = from.text();
  head.context = from.number<uint32_t>();
  if (head.context < 2 || head.context > kMostContext)
    throw Error("a context of {} tokens is none that a server has", head.context);
  from.end();
  return head;
}

RecordedAnswer read_answer(RecordingReader from) {
  RecordedAnswer answer;
  answer.id = from.text();
  answer.index = from.number<uint32_t>();
  Request& request = answer.request;
  request.prompt = from.numbers<TokenId>();
  request.sampling = read_sampling(from);
  request.choice = from.number<uint32_t>();
  request.max_tokens = from.number<uint32_t>();
  const uint32_t stops = from.count(sizeof(uint32_t));
  for (uint32_t i = 0; i < stops; ++i) request.stop.push_back(from.text());
  request.stop_tokens = from.numbers<TokenId>();
  request.ignore_end = from.choice(2) == 1;
  read_pruning(from, request);
  if (from.choice(2) == 1) {
    const auto kind =
        grammar::GrammarSource::Kind(from.choice(size_t(grammar::GrammarSource::Kind::calls) + 1));
    answer.grammar = grammar::GrammarSource{kind, from.text()};
  }
  answer.tokens = from.numbers<TokenId>();
  answer.logprobs = from.numbers<float>();
  answer.finish_reason = FinishReason(from.choice(size_t(FinishReason::failed) + 1));
  if (answer.logprobs.size() != answer.tokens.size())
    throw Error("{} tokens have {} log-probabilities", answer.tokens.size(), answer.logprobs.size());
  from.end();
  return answer;
}

struct Part {
  uint32_t kind = 0;
  std::span<const std::byte> bytes;
  bool whole = false;  // as it was written
};

// The next one; nothing if it is not there to its end.
std::optional<Part> take_part(std::span<const std::byte>& file) {
  if (file.size() < kFrameBytes + sizeof(uint64_t)) return std::nullopt;
  uint32_t frame[2];
  std::memcpy(frame, file.data(), sizeof(frame));
  if (frame[1] > file.size() - kFrameBytes - sizeof(uint64_t)) return std::nullopt;
  Part part{.kind = frame[0], .bytes = file.subspan(kFrameBytes, frame[1])};
  uint64_t checksum = 0;
  std::memcpy(&checksum, file.data() + kFrameBytes + frame[1], sizeof(checksum));
  part.whole = XXH3_64bits_withSeed(part.bytes.data(), part.bytes.size(), part.kind) == checksum;
  file = file.subspan(kFrameBytes + frame[1] + sizeof(checksum));
  return part;
}

}  // namespace

std::vector<std::byte> head_part(const RecordingHead& head) {
  RecordingWriter words, all;
  for (const std::string* text :
       {&head.version, &head.model_path, &head.identity.model_name, &head.identity.model,
        &head.identity.positions, &head.identity.kernels, &head.kv})
    words.text(*text);
  words.number(head.context);
  all.raw(std::as_bytes(std::span(kMagic)));
  all.number(kVersion);
  all.raw(framed(kHeadPart, words));
  return all.bytes();
}

std::vector<std::byte> answer_part(const RecordedAnswer& answer) {
  const Request& request = answer.request;
  RecordingWriter words;
  words.text(answer.id);
  words.number(answer.index);
  words.numbers(request.prompt);
  write_sampling(words, request.sampling);
  words.number(request.choice);
  words.number(request.max_tokens);
  words.number(uint32_t(request.stop.size()));
  for (const std::string& stop : request.stop) words.text(stop);
  words.numbers(request.stop_tokens);
  words.number(uint8_t(request.ignore_end ? 1 : 0));
  write_pruning(words, request);
  const auto& source = request.grammar ? std::optional(request.grammar->source()) : answer.grammar;
  words.number(uint8_t(source ? 1 : 0));
  if (source) {
    words.number(uint8_t(source->kind));
    words.text(source->text);
  }
  words.numbers(answer.tokens);
  words.numbers(answer.logprobs);
  words.number(uint8_t(answer.finish_reason));
  return framed(kAnswerPart, words);
}

Recording read_recording(std::span<const std::byte> file) {
  const size_t before = kMagic.size() + sizeof(uint32_t);
  if (file.size() < before || std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0)
    throw Error("it is not a recording of `quire serve --record`");
  uint32_t version = 0;
  std::memcpy(&version, file.data() + kMagic.size(), sizeof(version));
  if (version != kVersion) throw Error("its format is {}, and this quire reads {}", version, kVersion);
  file = file.subspan(before);
  Recording recording;
  const std::optional<Part> head = take_part(file);
  if (!head || !head->whole || head->kind != kHeadPart)
    throw Error("its head is damaged: what the answers were computed with is not known");
  recording.head = read_head(RecordingReader(head->bytes));
  for (size_t number = 1;; ++number) {
    const std::optional<Part> part = take_part(file);
    if (!part) break;
    if (!part->whole || part->kind != kAnswerPart) {
      recording.damaged.push_back(number);
      continue;
    }
    try {
      recording.answers.push_back(read_answer(RecordingReader(part->bytes)));
    } catch (const Error&) {
      recording.damaged.push_back(number);
    }
  }
  recording.cut_bytes = file.size();
  return recording;
}

Recording read_recording_file(const std::string& path) {
  // A pipe would keep whoever opens it waiting.
  std::error_code problem;
  if (!std::filesystem::is_regular_file(path, problem)) throw Error("cannot replay {}: it is no file", path);
  std::ifstream file(path, std::ios::binary);
  std::vector<std::byte> bytes(std::filesystem::file_size(path, problem));
  if (!file || problem) throw Error("cannot open {}", path);
  file.read(reinterpret_cast<char*>(bytes.data()), std::streamsize(bytes.size()));
  bytes.resize(size_t(file.gcount()));
  try {
    return read_recording(bytes);
  } catch (const Error& error) {
    throw Error("cannot replay {}: {}", path, error.what());
  }
}

}  // namespace quire
