// What --memory promises of the whole process, looked at from outside while it runs.
#include <csignal>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread_pool.h"
#include "cli_fixture.h"
#include "model/synth.h"

namespace quire {
namespace {

// A conversation with the program.
class Chat {
 public:
  explicit Chat(std::vector<std::string> options) {
    options.insert(options.begin(),
                   {QUIRE_BINARY_DIR "/quire", "chat", "--threads", "2", "--temperature", "0", "-n", "8"});
    std::vector<char*> arguments;
    for (std::string& option : options) arguments.push_back(option.data());
    arguments.push_back(nullptr);
    int in[2], err[2];
    if (::pipe(in) != 0 || ::pipe(err) != 0) throw std::runtime_error("no pipe could be made");
    ::fcntl(in[1], F_SETFD, FD_CLOEXEC);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    const int failed = ::posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(err[1]);
    in_ = in[1];
    err_ = err[0];
    if (failed != 0) throw std::runtime_error("the program could not be started");
    heard_ = listen_for("a context of ");
  }
  ~Chat() {
    ::close(in_);
    ::close(err_);
    ::waitpid(pid_, nullptr, 0);
  }
  Chat(const Chat&) = delete;
  Chat& operator=(const Chat&) = delete;

  const std::string& greeting() const { return heard_; }
  uint32_t context() const {
    const size_t at = heard_.find("a context of ");
    return at == std::string::npos ? 0 : uint32_t(std::stoul(heard_.substr(at + 13)));
  }
  // The figures of the answer.
  std::string ask(const std::string& message) {
    const std::string line = message + "\n";
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t more = ::write(in_, line.data() + sent, line.size() - sent);
      if (more <= 0) throw std::runtime_error("the program does not listen");
      sent += size_t(more);
    }
    return listen_for(" answer tokens");
  }
  // The most that was ever in memory, files it maps included.
  size_t peak_bytes() const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("VmHWM:")) return std::stoul(line.substr(6)) * 1024;
    }
    return 0;
  }

 private:
  // All that comes until a line with these words ends, or the program does.
  std::string listen_for(const std::string& words) {
    std::string heard;
    for (char c = 0; ::read(err_, &c, 1) == 1;) {
      heard += c;
      if (c == '\n' && contains(heard, words)) break;
    }
    return heard;
  }

  pid_t pid_ = -1;
  int in_ = -1, err_ = -1;
  std::string heard_;
};

// A model whose keys and values are far larger than its weights: 33 kB a token in f32, 101 MB in all.
std::string write_model(const std::string& path) {
  SynthShape shape = synth_shape("tiny");
  shape.heads = shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.context = 3072;
  ThreadPool pool(2);
  write_synthetic_model(shape, TypeMix("q4_0"), path, pool);
  return path;
}

// Digits, each a token of its own: as many as fill a context but for the frame around a message.
std::string filling(uint32_t context) {
  return std::string(context - 100, '1');
}

TEST_F(Cli, MemoryOfTheWholeProcessIsHeldWhenTheContextIsFull) {
  const std::string model = write_model(path("model.gguf"));
  constexpr size_t kLimit = 90'000'000;
  Chat unlimited({"-m", model, "--kv", "f32"});
  ASSERT_EQ(unlimited.context(), 3072u) << unlimited.greeting();
  const std::string usual = unlimited.ask(filling(3072));
  ASSERT_TRUE(contains(usual, " prompt + ")) << usual;
  EXPECT_GT(unlimited.peak_bytes(), kLimit) << "a limit that is never reached tests nothing";

  Chat limited({"-m", model, "--kv", "f32", "--memory", std::to_string(kLimit)});
  EXPECT_TRUE(contains(limited.greeting(), "context limited to")) << limited.greeting();
  ASSERT_LT(limited.context(), 3072u);
  ASSERT_GT(limited.context(), 400u);
  const std::string figures = limited.ask(filling(limited.context()));
  EXPECT_TRUE(contains(figures, " prompt + ")) << figures;
  EXPECT_LE(limited.peak_bytes(), kLimit);
}

}  // namespace
}  // namespace quire
