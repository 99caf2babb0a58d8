// A thousand streams at once, slow readers among them and a thousand connections that say nothing: every client gets
// the answer that it would get alone, and afterwards the server is as large as before.
//
// QUIRE_LOAD_CLIENTS and QUIRE_LOAD_IDLE say how many; the defaults take a few seconds on two slow cores.
#include <cstdlib>
#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include "server_in_process.h"

namespace quire {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

uint32_t from_environment(const char* name, uint32_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : uint32_t(std::strtoul(value, nullptr, 10));
}

const uint32_t kClients = from_environment("QUIRE_LOAD_CLIENTS", kSanitized ? 30 : 1000);
const uint32_t kIdle = from_environment("QUIRE_LOAD_IDLE", 1000);
constexpr uint32_t kTokens = kSanitized ? 4 : 6;
constexpr uint32_t kQuestions = kSanitized ? 6 : 25;  // each is asked by several clients

LoadedModel house() {
  return {QUIRE_SOURCE_DIR "/models/house/house.gguf", {.context = 256, .threads = 2}};
}

std::string prompt_of(uint32_t question) {
  return fmt::format("Once upon a time there were {} foxes who", question + 2);
}

struct Expected {
  std::string text;
  uint64_t tokens = 0;
};

// What an engine that knows no server answers.
std::vector<Expected> offline_answers() {
  const LoadedModel model = house();
  Engine engine(model.engine_model(), {.context = 256});
  std::vector<Expected> answers;
  for (uint32_t q = 0; q < kQuestions; ++q) {
    Request request;
    request.prompt = model.text().tokenizer.encode(prompt_of(q));
    request.sampling = model.text().sampling_defaults;
    request.sampling.temperature = 1;
    request.sampling.seed = q;
    request.max_tokens = kTokens;
    const Answer answer = engine.run(request);
    answers.push_back({answer.text, answer.tokens.size()});
  }
  return answers;
}

// One of many streams in one thread: reads what there is, when it is told to.
struct StreamClient {
  StreamClient(uint16_t port, uint32_t question, int receive_bytes)
      : connection(port, receive_bytes), question(question) {
    const Json body = {{"prompt", prompt_of(question)},
                       {"max_tokens", kTokens},
                       {"seed", question},
                       {"temperature", 1},
                       {"stream", true},
                       {"stream_options", {{"include_usage", true}}}};
    connection.ask("POST", "/v1/completions", body.dump(), "Connection: close\r\n");
    ::fcntl(connection.socket(), F_SETFL, ::fcntl(connection.socket(), F_GETFL) | O_NONBLOCK);
  }

  void read(size_t most) {
    char bytes[16384];
    const ssize_t count = ::recv(connection.socket(), bytes, std::min(most, sizeof bytes), 0);
    if (count > 0) received.append(bytes, size_t(count));
    closed |= count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
  }

  void expect(const Expected& expected) const {
    const size_t head = received.find("\r\n\r\n");
    ASSERT_TRUE(received.starts_with("HTTP/1.1 200") && head != std::string::npos) << received.substr(0, 400);
    std::string body;
    std::string_view rest = std::string_view(received).substr(head + 4);
    while (true) {  // chunks
      size_t size = 0;
      std::from_chars(rest.data(), rest.data() + rest.size(), size, 16);
      const size_t line = rest.find("\r\n") + 2;
      if (size == 0 || rest.size() < line + size + 2) break;
      body += rest.substr(line, size);
      rest.remove_prefix(line + size + 2);
    }
    EXPECT_EQ(rest, "0\r\n\r\n");
    StreamText stream = read_events(body);
    EXPECT_TRUE(stream.done);
    EXPECT_EQ(stream.texts[0], expected.text);
    EXPECT_EQ(stream.answer_tokens, expected.tokens);
  }

  RawClient connection;
  uint32_t question;
  std::string received;
  bool closed = false;
};

// Reads all of them as it comes.
void read_to_the_end(std::span<StreamClient> clients, std::span<StreamClient> slow) {
  size_t turn = 0;
  while (true) {
    std::vector<pollfd> waiting;
    std::vector<StreamClient*> who;
    for (StreamClient& client : clients) {
      if (client.closed) continue;
      waiting.push_back({client.connection.socket(), POLLIN, 0});
      who.push_back(&client);
    }
    if (waiting.empty()) return;
    ::poll(waiting.data(), waiting.size(), -1);
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) who[i]->read(SIZE_MAX);
    }
    if (!slow.empty()) slow[turn++ % slow.size()].read(1);  // a byte now and then
  }
}

// Sees to it that so many files may be open.
bool allow_files(rlim_t files) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= files) return true;
  limit.rlim_cur = std::min(limit.rlim_max, files);
  return limit.rlim_cur >= files && ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

double resident_mb() {
  ::malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return double(resident) * double(::sysconf(_SC_PAGESIZE)) / 1e6;
}

class ServerLoad : public testing::Test {
 protected:
  ServerLoad() {
    ServerOptions options;
    options.service.limits.open_answers = kClients + 64;
    options.http.connections = kClients + kIdle + 64;
    EngineOptions engine{.context = 256, .max_sequences = 32};
    engine.kv_bytes = size_t(64) << 20;
    server_ = std::make_unique<ServerInProcess>(model_, engine, options);
  }

  const LoadedModel model_ = house();
  std::unique_ptr<ServerInProcess> server_;
};

TEST_F(ServerLoad, AThousandStreamsGetTheAnswersOfAnEngineAlone) {
  if (!allow_files(2 * (kClients + kIdle) + 200))
    GTEST_SKIP() << "this process may not open " << 2 * (kClients + kIdle) + 200 << " files";
  const std::vector<Expected> expected = offline_answers();
  std::vector<RawClient> idle;
  for (uint32_t i = 0; i < kIdle; ++i) {
    idle.emplace_back(server_->port());
    ASSERT_TRUE(idle.back().connected()) << i;
  }
  const auto round = [&] {
    std::vector<StreamClient> clients, slow;
    for (uint32_t c = 0; c < kClients; ++c) {
      const bool reads_slowly = c % 30 == 7;
      (reads_slowly ? slow : clients).emplace_back(server_->port(), c % kQuestions, reads_slowly ? 2048 : 0);
    }
    read_to_the_end(clients, slow);
    for (const StreamClient& client : clients) client.expect(expected[client.question]);
    for (const StreamClient& client : slow) EXPECT_FALSE(client.closed);  // only they are late
    read_to_the_end(slow, {});
    for (const StreamClient& client : slow) client.expect(expected[client.question]);
    wait_until([&] { return server_->metric("quire_connections") == kIdle + 1; });
    EXPECT_EQ(server_->held_pages(), 0u);
  };
  round();
  const double after_one = resident_mb();
  round();
  const double after_two = resident_mb();
  RecordProperty("resident_mb_after_one", std::to_string(after_one));
  RecordProperty("resident_mb_after_two", std::to_string(after_two));
  if (!kSanitized) {
    EXPECT_LT(after_two, after_one + 4);
  }
  EXPECT_EQ(server_->metric("quire_requests_cancelled_total"), 0);
  for (RawClient& client : idle) client.ask("GET", "/health");
  for (RawClient& client : idle) EXPECT_TRUE(client.read());
}

TEST_F(ServerLoad, ConnectionsThatWaitDoNotKeepWhatTheySent) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps what was freed";
  constexpr uint32_t kConnections = 24, kBodyMb = 4;
  const std::string body(size_t(kBodyMb) << 20, ' ');
  const double before = resident_mb();
  std::vector<RawClient> clients;
  for (uint32_t i = 0; i < kConnections; ++i) {
    clients.emplace_back(server_->port());
    clients.back().ask("POST", "/v1/completions", body);
    const auto response = clients.back().read();
    EXPECT_TRUE(response && response->status == 400);
  }
  EXPECT_LT(resident_mb(), before + kConnections * kBodyMb / 2);
}

}  // namespace
}  // namespace quire
