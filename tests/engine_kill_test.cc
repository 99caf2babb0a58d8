// kill -9 while pages go to the disk and come back: the next process is not disturbed, and nothing is left behind.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "golden_model.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

// What a child has done so far, seen by its parent.
struct Progress {
  std::atomic<uint32_t> steps, written, read;
};

class KilledEngines : public testing::Test {
 protected:
  KilledEngines() {
    fs::create_directories(folder_);
    void* shared =
        ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    progress_ = static_cast<Progress*>(shared);
  }
  ~KilledEngines() override {
    ::munmap(progress_, sizeof(Progress));
    fs::remove_all(folder_);
  }

  // Room for about two of the prompts; the others go to the disk.
  static std::unique_ptr<Engine> make(BareModel& model, const std::string& disk_folder) {
    EngineOptions options{.context = 96, .max_sequences = 2, .prefill_chunk = 32};
    options.page_tokens = 4;
    const KvLayout layout = make_kv_layout(kv_shapes(model.spec, options.kv_formats), 4);
    options.kv_bytes = kv_bytes(layout, pages_for(layout, 136, 32, 1));
    if (!disk_folder.empty()) {
      options.disk_bytes = kv_bytes(layout, std::vector(layout.groups.size(), 100u));
      options.disk_folder = disk_folder;
      options.disk_patience = 1e9;
    }
    return std::make_unique<Engine>(model.engine_model(), options);
  }
  static Request ask(uint32_t which, uint32_t vocab) {
    Request request;
    for (uint32_t p = 0; p < 60; ++p) request.prompt.push_back((which * 31 + p * 7 + p * p) % vocab);
    request.max_tokens = 4;
    request.sampling = {.temperature = 0};
    return request;
  }
  using Answers = std::vector<std::vector<TokenId>>;
  static Answers answers(const std::string& disk_folder, uint32_t rounds) {
    BareModel model(golden_folder("llama3"), exact_kernels(), 1);
    const auto engine = make(model, disk_folder);
    Answers all(kPrompts);
    for (uint32_t i = 0; i < rounds * kPrompts; ++i) {
      const std::vector<TokenId> tokens = engine->run(ask(i % kPrompts, model.spec.vocab)).tokens;
      if (!all[i % kPrompts].empty() && all[i % kPrompts] != tokens) return {};
      all[i % kPrompts] = tokens;
    }
    engine->check_invariants();
    return all;
  }
  [[noreturn]] void run_for_ever() const {
    BareModel model(golden_folder("llama3"), exact_kernels(), 1);
    const auto engine = make(model, folder_);
    for (uint32_t i = 0;; ++i) {
      engine->submit(ask(i % kPrompts, model.spec.vocab));
      while (engine->step()) {
        ++progress_->steps;
        const DiskTier::Stats disk = engine->disk()->stats();
        progress_->written = uint32_t(disk.written_pages);
        progress_->read = uint32_t(disk.read_pages);
      }
      engine->take_answers();
    }
  }

  static constexpr uint32_t kPrompts = 5;
  Progress* progress_ = nullptr;
  const std::string folder_ = testing::TempDir() + "/quire_killed_" + std::to_string(::getpid());
};

// QUIRE_KILLS sets how many; a few are enough for every day.
TEST_F(KilledEngines, LeaveNothingBehindAndTheNextAnswersRight) {
  const char* wanted = std::getenv("QUIRE_KILLS");
  const int kills = wanted == nullptr ? 20 : std::atoi(wanted);
  const Answers expected = answers("", 1);
  std::mt19937 random(5);
  int while_writing = 0, while_reading = 0;
  for (int i = 0; i < kills; ++i) {
    progress_->steps = progress_->written = progress_->read = 0;
    const uint32_t steps = i % 5 == 0 ? 0 : random() % 150;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) run_for_ever();
    int status = 0;
    while (progress_->steps < steps && ::waitpid(child, &status, WNOHANG) == 0) ::usleep(100);
    ::usleep(useconds_t(random() % 3000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    while_writing += progress_->written > 0 ? 1 : 0;
    while_reading += progress_->read > 0 ? 1 : 0;
    ASSERT_TRUE(fs::is_empty(folder_));

    const pid_t next = ::fork();
    ASSERT_GE(next, 0);
    if (next == 0) ::_exit(answers(folder_, 2) == expected ? 0 : 1);
    ASSERT_EQ(::waitpid(next, &status, 0), next);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ASSERT_TRUE(fs::is_empty(folder_));
  }
  std::cout << kills << " kills, " << while_writing << " after pages had gone to the disk, " << while_reading
            << " after some had come back\n";
  EXPECT_GT(while_writing, kills / 4);
  EXPECT_GT(while_reading, 0);
}

}  // namespace
}  // namespace quire
