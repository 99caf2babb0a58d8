// Any bytes are a recording, whole or in part, or an Error. What was read is written and read again the same. The target
// makes its own seeds, because changed bytes would all end at a checksum: it writes them to the first folder it is given.
#include <cstring>
#include <filesystem>
#include <fstream>

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "base/bounded_work.h"
#include "base/check.h"
#include "base/error.h"
#include "replay/recording.h"

namespace {

using namespace quire;

const RecordingHead kHead{.version = "fuzz",
                          .model_path = "house",
                          .identity = {.model_name = "n", .model = "1", .positions = "2", .kernels = "3"},
                          .kv = "f16",
                          .context = 64};

void put(std::vector<std::byte>& file, const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  file.insert(file.end(), begin, begin + bytes);
}

// The input is a list of parts, each with two bytes for its length, that get the checksums they need.
std::vector<std::byte> with_checksums(std::span<const std::byte> input) {
  std::vector<std::byte> file = head_part(kHead);
  while (input.size() >= 2) {
    const size_t length = std::min(input.size() - 2, size_t(input[0]) | size_t(input[1]) << 8);
    const uint32_t frame[] = {2, uint32_t(length)};
    const std::span<const std::byte> part = input.subspan(2, length);
    const uint64_t checksum = XXH3_64bits_withSeed(part.data(), part.size(), frame[0]);
    put(file, frame, sizeof(frame));
    put(file, part.data(), part.size());
    put(file, &checksum, sizeof(checksum));
    input = input.subspan(2 + length);
  }
  put(file, input.data(), input.size());
  return file;
}

void read_and_write_again(std::span<const std::byte> file) {
  Recording recording;
  try {
    recording = read_recording(file);
  } catch (const Error&) {
    return;
  }
  std::vector<std::byte> again = head_part(recording.head);
  for (const RecordedAnswer& answer : recording.answers) {
    const std::vector<std::byte> part = answer_part(answer);
    put(again, part.data(), part.size());
  }
  const Recording twice = read_recording(again);
  CHECK(twice.answers.size() == recording.answers.size() && twice.damaged.empty() && twice.cut_bytes == 0);
  for (size_t i = 0; i < twice.answers.size(); ++i)
    CHECK(twice.answers[i].tokens == recording.answers[i].tokens);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    if ((*arguments)[i][0] == '-') continue;
    RecordedAnswer answer;
    answer.id = "cmpl-1";
    answer.request.prompt = {1, 2, 3};
    answer.request.sampling.logit_bias = {{4, -1.0f}};
    answer.request.stop = {"é"};
    answer.request.stop_tokens = {7};
    answer.request.pruning = PruningOptions{.share = 0.5, .evaluator = {.layer = 1, .heads = {0, 2}}};
    answer.tokens = {5, 6};
    answer.logprobs = {-1.5f, -0.25f};
    const std::vector<std::byte> part = answer_part(answer);
    const size_t length = part.size() - 16;
    std::ofstream seed(std::filesystem::path((*arguments)[i]) / "one_answer", std::ios::binary);
    seed.put(char(length & 255)).put(char(length >> 8));
    seed.write(reinterpret_cast<const char*>(part.data()) + 8, std::streamsize(length));
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  const BoundedWork bounded(size);
  read_and_write_again(input);
  read_and_write_again(with_checksums(input));
  return 0;
}
