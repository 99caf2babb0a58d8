// A real server process that is abused: bodies that never end, trees of millions of values, replies that nobody reads.
// Afterwards it is as small as before.
#include <csignal>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "cli_fixture.h"
#include "raw_http_client.h"

namespace quire {
namespace {

// `quire serve` as a child that is told to stop at the end.
class ServeProcess {
 public:
  ServeProcess(const std::string& log, const std::vector<std::string>& options) : log_(log) {
    std::vector<std::string> words = {QUIRE_BINARY_DIR "/quire", "serve", "--port", "0"};
    words.insert(words.end(), options.begin(), options.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      const int file = ::open(log_.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
      ::dup2(file, 2);
      ::execv(arguments[0], arguments.data());
      std::_Exit(127);
    }
  }
  ~ServeProcess() { stop(); }
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

  // Once it listens. 0: it has ended instead.
  uint16_t port() {
    constexpr std::string_view kBefore = "127.0.0.1:";
    while (true) {
      const std::string text = slurp(log_);
      const size_t begin = text.find(kBefore), end = text.find(" (the page");
      if (end != std::string::npos) return uint16_t(std::stoul(text.substr(begin + kBefore.size())));
      if (::waitpid(pid_, nullptr, WNOHANG) != 0) return 0;
      ::usleep(20'000);
    }
  }
  // What it says of itself, less files that are mapped.
  size_t resident_kb() const {
    std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
    for (std::string word; status >> word;) {
      size_t kb = 0;
      if (word == "RssAnon:" && status >> kb) return kb;
    }
    return 0;
  }
  // Its exit code.
  int stop() {
    if (pid_ <= 0) return code_;
    ::kill(pid_, SIGTERM);
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  std::string log_;
  pid_t pid_ = 0;
  int code_ = -1;
};

class ServerMemory : public Cli {};

// To a name of this machine itself: without a key it answers to no other.
std::string post(std::string_view path, std::string_view body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}", path, body.size(),
                     body);
}

int status_of(uint16_t port, std::string_view path, std::string_view body) {
  RawClient client(port);
  client.send(post(path, body));
  const auto response = client.read();
  return response ? response->status : 0;
}

std::string numbers(const std::string& before, size_t count) {
  std::string body = before + "[5";
  for (size_t i = 1; i < count; ++i) body += ",5";
  return body + "]}";
}

TEST_F(ServerMemory, IsAsSmallAfterAbuseAsBefore) {
  ServeProcess server(path("log"),
                      {"-m", llama_, "--kv-memory", "8M", "--threads", "1", "--grace-seconds", "1"});
  const uint16_t port = server.port();
  ASSERT_NE(port, 0) << slurp(path("log"));
  // Every thread has been at work, and all pages of the cache are in memory.
  const std::string question = R"({"prompt":"Once upon a time","max_tokens":200,"ignore_eos":true,"seed":)";
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(status_of(port, "/v1/completions", question + std::to_string(i) + "}"), 200);
  EXPECT_EQ(status_of(port, "/detokenize", numbers("{\"tokens\":", 100'000)), 200);
  const size_t before = server.resident_kb();
  ASSERT_GT(before, 1000u);

  const std::string trees = numbers(R"({"prompt":"a","max_tokens":1,"metadata":)", 3'000'000);
  const std::string replies = numbers("{\"tokens\":", 3'000'000);
  size_t most = before;
  for (int round = 0; round < 2; ++round) {
    std::vector<RawClient> halves, unread;
    for (int i = 0; i < 8; ++i) {
      halves.emplace_back(port);  // bodies of which the end never comes
      halves.back().send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n\r\n");
      halves.back().send(std::string_view(trees).substr(0, 4'000'000));
    }
    for (int i = 0; i < 3; ++i) {
      unread.emplace_back(port, 4096);
      unread.back().send(post("/detokenize", replies));
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(status_of(port, "/v1/completions", trees), 200);
      most = std::max(most, server.resident_kb());
    }
  }
  EXPECT_GT(most, before + 32'000);  // it was abused
  size_t after = 0;
  for (int looks = 0; looks < 600; ++looks) {  // those who left are not noticed at once
    after = server.resident_kb();
    if (after <= before + before / 5 + 6'000) break;
    ::usleep(100'000);
  }
  RecordProperty("resident_kb_before", std::to_string(before));
  RecordProperty("resident_kb_most", std::to_string(most));
  RecordProperty("resident_kb_after", std::to_string(after));
  EXPECT_LE(after, before + before / 5 + 6'000) << "it held " << most << " kB";
  EXPECT_EQ(status_of(port, "/tokenize", R"({"prompt":"a"})"), 200);
  EXPECT_EQ(server.stop(), 0);
}

// Each with names of its own, so that none is like another.
std::string with_schema(int i) {
  std::string properties;
  for (int p = 0; p < 12; ++p)
    properties += fmt::format(R"({}"name_{}_{}": {{"type": "string", "pattern": "^[a-z]{{2,{}}}-{}$"}})",
                              p > 0 ? ", " : "", i, p, 5 + p, i);
  return fmt::format(
      R"({{"prompt": "a", "max_tokens": 12, "temperature": 1, "seed": {}, "guided_json": {{"type": "object",
    "properties": {{{}}}, "additionalProperties": {{"type": "integer"}}}}}})",
      i, properties);
}

TEST_F(ServerMemory, ManyDifferentSchemasKeepToTheMemoryTheyHave) {
  ServeProcess server(path("log"), {"-m", llama_, "--kv-memory", "8M", "--threads", "1", "--grace-seconds",
                                    "1", "--grammar-memory", "12M"});
  const uint16_t port = server.port();
  ASSERT_NE(port, 0) << slurp(path("log"));
  constexpr int kFew = 200, kMany = 2000;
  size_t after_few = 0;
  for (int i = 0; i < kMany; ++i) {
    ASSERT_EQ(status_of(port, "/v1/completions", with_schema(i)), 200);
    if (i == kFew) after_few = server.resident_kb();
  }
  const size_t after_many = server.resident_kb();
  RecordProperty("resident_kb_after_few", std::to_string(after_few));
  RecordProperty("resident_kb_after_many", std::to_string(after_many));
  EXPECT_LE(after_many, after_few + 16'000);
  RawClient client(port);
  client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto metrics = client.read();
  ASSERT_TRUE(metrics);
  const auto figure = [&](const std::string& name) {
    const size_t at = metrics->body.find("\n" + name + "{");
    return at == std::string::npos ? -1.0 : std::stod(metrics->body.substr(metrics->body.find(' ', at)));
  };
  EXPECT_EQ(figure("quire_grammar_limit_bytes"), 12 << 20);
  EXPECT_LE(figure("quire_grammar_bytes"), 12 << 20);
  EXPECT_EQ(figure("quire_grammars_compiled_total"), kMany);
  EXPECT_GT(figure("quire_grammar_bytes"), 100'000);
  EXPECT_EQ(server.stop(), 0);
}

}  // namespace
}  // namespace quire
