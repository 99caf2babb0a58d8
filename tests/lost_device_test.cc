// A device that fails: for one step, or for good. What requests and servers make of it.
#include <future>

#include <gtest/gtest.h>

#include "dying_backend.h"
#include "engine/engine_loop.h"
#include "golden_model.h"
#include "server_in_process.h"

namespace quire {
namespace {

class LostDevice : public testing::Test {
 protected:
  static constexpr uint32_t kContext = 4096;

  std::unique_ptr<Engine> engine() {
    EngineModel model = model_.engine_model();
    model.backend = &device_;
    return std::make_unique<Engine>(
        model, EngineOptions{.context = kContext, .max_sequences = 2, .prefill_chunk = 16});
  }
  Request request(uint32_t max_tokens) const {
    Request request;
    for (uint32_t i = 0; i < 40; ++i) request.prompt.push_back((7 + i * 5) % model_.spec().vocab);
    request.sampling.temperature = 0;
    request.ignore_end = true;
    request.max_tokens = max_tokens;
    return request;
  }
  static ServerOptions options() {
    ServerOptions options;
    options.service.limits.open_answers = 4;
    return options;
  }
  static Json question(uint32_t tokens) {
    return {{"prompt", "a question"}, {"max_tokens", tokens}, {"temperature", 0}, {"ignore_eos", true}};
  }

  const LoadedModel model_{golden_folder("llama3"),
                           {.context = kContext, .threads = 1, .kernels = "exact", .device = "cpu"}};
  DyingBackend device_{exact_kernels(), 1};
};

TEST_F(LostDevice, ALostDeviceEndsAllRequestsThatRunOrWaitWithTheSentence) {
  EngineLoop loop(engine());
  std::vector<std::promise<std::string>> ended(5);
  std::promise<void> begun;
  for (size_t i = 0; i < ended.size(); ++i) {
    Request ask = request(kContext - 64);
    if (i == 0)
      ask.on_token = [&, first = true](const TokenEvent&) mutable {
        if (std::exchange(first, false)) begun.set_value();
      };
    loop.submit(ask, [&, i](const Answer* answer, const std::string&) {
      ended[i].set_value(answer == nullptr ? "refused" : answer->problem);
    });
  }
  begun.get_future().get();
  device_.die();
  for (auto& one : ended) EXPECT_EQ(one.get_future().get(), "the GPU is lost to this process");
  // And whoever comes later.
  std::promise<std::string> late;
  loop.submit(request(5), [&](const Answer* answer, const std::string&) {
    late.set_value(answer == nullptr ? "refused" : answer->problem);
  });
  EXPECT_EQ(late.get_future().get(), "the GPU is lost to this process");
  EXPECT_TRUE(loop.ask([](Engine& e) { return e.scheduler().idle(); }).get())
      << "there is nothing to spin on";
}

TEST_F(LostDevice, AServerWhoseDeviceIsLostAnswersWith500AndEndsByItself) {
  ServerInProcess server(model_, engine(), options());
  ASSERT_EQ(server.complete(question(3)).status, 200);
  RawClient client(server.port());
  device_.die();
  client.ask("POST", "/v1/completions", question(3000).dump());
  const auto response = client.read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 500) << response->body;
  EXPECT_NE(response->body.find("the GPU is lost to this process"), std::string::npos) << response->body;
  server.wait();  // nobody tells it to stop
  EXPECT_EQ(server.lost(), "the GPU is lost to this process");
}

TEST_F(LostDevice, MemoryThatIsMissingInOneStepEndsItsRequestsAndTheServerGoesOn) {
  ServerInProcess server(model_, engine(), options());
  const RawResponse right = server.complete(question(8));
  ASSERT_EQ(right.status, 200);
  device_.fail(1);
  const RawResponse failed = server.complete(question(8));
  EXPECT_EQ(failed.status, 500) << failed.body;
  EXPECT_NE(failed.body.find("no room for 3.00 GB"), std::string::npos) << failed.body;
  const RawResponse after = server.complete(question(8));
  EXPECT_EQ(after.status, 200);
  EXPECT_EQ(after.json()["choices"], right.json()["choices"]);
  EXPECT_EQ(server.held_pages(), 0u);
  server.stop();
  EXPECT_EQ(server.lost(), "");
}

TEST_F(LostDevice, MetricsAndTheCacheReportSayWhatIsInTheMemoryOfTheDevice) {
  ServerInProcess server(model_, engine(), options());
  ASSERT_EQ(server.complete(question(3)).status, 200);
  const Json device = server.get("/kv").json()["device"];
  EXPECT_EQ(device["total_bytes"], DyingBackend::kTotal);
  EXPECT_EQ(device["free_bytes"], DyingBackend::kFree);
  EXPECT_GT(device["kv_bytes"], 0u);
  EXPECT_GT(device["workspace_bytes"], 0u);
  size_t known = 0;
  for (const char* kind : {"weights", "kv", "workspace", "other", "free"})
    known += device[std::string(kind) + "_bytes"].get<size_t>();
  EXPECT_EQ(known, DyingBackend::kTotal);
  const std::string metrics = server.get("/metrics").body;
  for (const char* kind : {"weights", "kv", "workspace", "other", "free"})
    EXPECT_NE(metrics.find(std::string("quire_device_memory_bytes{kind=\"") + kind + "\""), std::string::npos)
        << kind;
}

TEST_F(LostDevice, OfTheHostsMemoryNothingIsSaid) {
  ServerInProcess server(model_, {.context = 256, .max_sequences = 1}, options());
  ASSERT_EQ(server.complete(question(3)).status, 200);
  EXPECT_TRUE(server.get("/kv").json()["device"].is_null());
  EXPECT_EQ(server.get("/metrics").body.find("quire_device_memory_bytes{"), std::string::npos);
}

}  // namespace
}  // namespace quire
