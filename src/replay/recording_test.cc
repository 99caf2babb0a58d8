#include "replay/recording.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "replay/recorder.h"

namespace quire {
namespace {

const RecordingHead kHead{
    .version = "1.2.3",
    .model_path = "house",
    .identity = {.model_name = "House", .model = "abc", .positions = "def", .kernels = "scalar"},
    .kv = "k=int8,v=q4",
    .context = 4096};

RecordedAnswer some_answer(uint32_t index = 0) {
  RecordedAnswer answer;
  answer.id = "cmpl-0123";
  answer.index = index;
  Request& request = answer.request;
  request.prompt = {1, 2, 3, 500000};
  request.sampling = {.temperature = 0.7f,
                      .top_k = 40,
                      .top_p = 0.9f,
                      .min_p = 0.05f,
                      .typical = 0.8f,
                      .repetition_penalty = 1.1f,
                      .presence_penalty = 0.5f,
                      .frequency_penalty = -0.5f,
                      .logit_bias = {{7, -100.0f}, {9, 2.5f}},
                      .seed = UINT64_MAX - 1};
  request.choice = 3;
  request.max_tokens = 12;
  request.stop = {"\n\n", "Füße"};
  request.stop_tokens = {5, 6};
  request.ignore_end = true;
  request.pruning = PruningOptions{.policy = PruningPolicy::evaluator,
                                   .tokens = 100,
                                   .window = 16,
                                   .evaluator = {.layer = 2, .heads = {0, 3}},
                                   .scored = 3};
  answer.tokens = {10, 11, 12};
  answer.logprobs = {-0.5f, -1.25f, -3e-8f};
  answer.finish_reason = FinishReason::stop;
  return answer;
}

std::vector<std::byte> file_of(uint32_t answers) {
  std::vector<std::byte> file = head_part(kHead);
  for (uint32_t i = 0; i < answers; ++i) {
    const std::vector<std::byte> part = answer_part(some_answer(i));
    file.insert(file.end(), part.begin(), part.end());
  }
  return file;
}

void expect_same(const RecordedAnswer& a, const RecordedAnswer& b) {
  EXPECT_EQ(answer_part(a), answer_part(b));
  EXPECT_EQ(a.request.prompt, b.request.prompt);
  EXPECT_EQ(a.request.stop, b.request.stop);
  EXPECT_EQ(a.request.sampling.seed, b.request.sampling.seed);
  EXPECT_EQ(a.request.sampling.logit_bias, b.request.sampling.logit_bias);
  EXPECT_EQ(a.request.pruning->policy, b.request.pruning->policy);
  EXPECT_EQ(a.request.pruning->evaluator.heads, b.request.pruning->evaluator.heads);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.logprobs, b.logprobs);
  EXPECT_EQ(a.finish_reason, b.finish_reason);
}

TEST(Recording, HasTheBudgetOfAnAnswerThatKeptToOne) {
  RecordedAnswer answer = some_answer(0);
  answer.request.pruning.reset();
  answer.request.budget =
      BudgetOptions{.bytes = 64 << 20, .policy = PruningPolicy::streaming, .pinned = 9, .window = 16};
  std::vector<std::byte> file = head_part(kHead);
  const std::vector<std::byte> part = answer_part(answer);
  file.insert(file.end(), part.begin(), part.end());
  const Recording read = read_recording(file);
  ASSERT_EQ(read.answers.size(), 1u);
  const Request& request = read.answers.front().request;
  EXPECT_FALSE(request.pruning);
  ASSERT_TRUE(request.budget);
  EXPECT_EQ(request.budget->rows, 0u);
  EXPECT_EQ(request.budget->bytes, size_t(64) << 20);
  EXPECT_EQ(request.budget->policy, PruningPolicy::streaming);
  EXPECT_EQ(request.budget->pinned, 9u);
  EXPECT_EQ(request.budget->window, 16u);
}

TEST(Recording, IsReadAsItWasWritten) {
  const Recording read = read_recording(file_of(3));
  EXPECT_EQ(read.head.version, kHead.version);
  EXPECT_EQ(read.head.model_path, kHead.model_path);
  EXPECT_EQ(read.head.identity.model, kHead.identity.model);
  EXPECT_EQ(read.head.identity.positions, kHead.identity.positions);
  EXPECT_EQ(read.head.identity.kernels, kHead.identity.kernels);
  EXPECT_EQ(read.head.kv, kHead.kv);
  EXPECT_EQ(read.head.context, kHead.context);
  ASSERT_EQ(read.answers.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) expect_same(read.answers[i], some_answer(i));
  EXPECT_TRUE(read.damaged.empty());
  EXPECT_EQ(read.cut_bytes, 0u);
}

TEST(Recording, IsReadUpToWhereItWasCut) {
  const std::vector<std::byte> whole = file_of(2);
  const size_t head = head_part(kHead).size(), part = answer_part(some_answer()).size();
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::span<const std::byte> cut = std::span(whole).first(size);
    if (size < head) {
      EXPECT_THROW(read_recording(cut), Error) << size;
      continue;
    }
    const Recording read = read_recording(cut);
    EXPECT_EQ(read.answers.size(), (size - head) / part) << size;
    EXPECT_EQ(read.cut_bytes, (size - head) % part) << size;
    EXPECT_TRUE(read.damaged.empty()) << size;
  }
}

TEST(Recording, SaysWhichPartWasChangedWhateverByteItIs) {
  const std::vector<std::byte> whole = file_of(3);
  const size_t head = head_part(kHead).size(), part = answer_part(some_answer()).size();
  // The words and the checksum of the second answer.
  for (size_t at = head + part + 8; at < head + 2 * part; ++at) {
    std::vector<std::byte> changed = whole;
    changed[at] ^= std::byte{1};
    const Recording read = read_recording(changed);
    EXPECT_EQ(read.damaged, std::vector<size_t>{2}) << at;
    ASSERT_EQ(read.answers.size(), 2u) << at;
    EXPECT_EQ(read.answers[1].index, 2u) << at;
  }
}

TEST(Recording, ThatHasAnotherHeadIsRefused) {
  std::vector<std::byte> other = file_of(1);
  other[0] = std::byte{'Q'};
  EXPECT_THROW(read_recording(other), Error);
  std::vector<std::byte> damaged = file_of(1);
  damaged[30] ^= std::byte{1};
  EXPECT_THROW(read_recording(damaged), Error);
  RecordingHead endless = kHead;
  endless.context = UINT32_MAX;
  EXPECT_THROW(read_recording(head_part(endless)), Error);
}

TEST(Recording, WithValuesThatNoServerTakesIsDamaged) {
  const auto damaged = [](const RecordedAnswer& answer) {
    std::vector<std::byte> file = head_part(kHead);
    const std::vector<std::byte> part = answer_part(answer);
    file.insert(file.end(), part.begin(), part.end());
    return read_recording(file).damaged.size() == 1;
  };
  EXPECT_FALSE(damaged(some_answer()));
  RecordedAnswer answer = some_answer();
  answer.logprobs.pop_back();
  EXPECT_TRUE(damaged(answer));
  answer = some_answer();
  answer.request.sampling.temperature = -1;
  EXPECT_TRUE(damaged(answer));
  answer = some_answer();
  answer.request.stop = {"\xff"};
  EXPECT_TRUE(damaged(answer));
  answer = some_answer();
  answer.request.pruning->evaluator.heads.clear();
  EXPECT_TRUE(damaged(answer));
}

TEST(Recording, OfWhatIsNoFileIsRefused) {
  EXPECT_THROW(read_recording_file(testing::TempDir()), Error);
  EXPECT_THROW(read_recording_file("/dev/null"), Error);
  EXPECT_THROW(read_recording_file(testing::TempDir() + "/nothing is called so"), Error);
}

class RecorderFile : public testing::Test {
 protected:
  ~RecorderFile() override { std::filesystem::remove(path_); }
  std::string path_ = testing::TempDir() + "/quire_recorder_" + std::to_string(::getpid());
};

TEST_F(RecorderFile, HasAllThatWasAddedAndIsForItsOwnerOnly) {
  {
    Recorder recorder({.path = path_}, kHead);
    for (uint32_t i = 0; i < 50; ++i) recorder.add([i] { return some_answer(i); });
  }
  const Recording read = read_recording_file(path_);
  ASSERT_EQ(read.answers.size(), 50u);
  for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(read.answers[i].index, i);
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(RecorderFile, EndsWithAWholeAnswerWhenItHasItsBytes) {
  const size_t head = head_part(kHead).size(), part = answer_part(some_answer()).size();
  std::vector<std::string> said;
  {
    Recorder recorder({.path = path_,
                       .most_bytes = head + 3 * part + part / 2,
                       .on_end = [&](const std::string& why) { said.push_back(why); }},
                      kHead);
    for (uint32_t i = 0; i < 20; ++i) recorder.add([i] { return some_answer(i); });
  }
  EXPECT_EQ(std::filesystem::file_size(path_), head + 3 * part);
  EXPECT_EQ(read_recording_file(path_).answers.size(), 3u);
  ASSERT_EQ(said.size(), 1u) << "once";
  EXPECT_NE(said[0].find("--record-bytes"), std::string::npos) << said[0];
}

TEST_F(RecorderFile, IsNeverWrittenOver) {
  std::ofstream(path_) << "somebody's own";
  EXPECT_THROW(Recorder({.path = path_}, kHead), Error);
  std::ifstream file(path_);
  std::string words;
  std::getline(file, words);
  EXPECT_EQ(words, "somebody's own");
}

TEST_F(RecorderFile, LeavesOutAnAnswerThatCannotBeMadeAndGoesOn) {
  {
    Recorder recorder({.path = path_}, kHead);
    recorder.add([]() -> RecordedAnswer { throw std::bad_alloc(); });
    recorder.add([] { return some_answer(1); });
  }
  const Recording read = read_recording_file(path_);
  ASSERT_EQ(read.answers.size(), 1u);
  EXPECT_EQ(read.answers[0].index, 1u);
}

}  // namespace
}  // namespace quire
