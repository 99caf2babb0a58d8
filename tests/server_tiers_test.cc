// The tiers behind memory as a server's users meet them.
#include <filesystem>

#include <gmock/gmock.h>
#include <unistd.h>

#include "cli_fixture.h"
#include "server_fixture.h"

namespace quire {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<TokenId> prompt_of_200(uint32_t first) {
  std::vector<TokenId> ids = {1, 10 + first};
  while (ids.size() < 200) ids.push_back(TokenId(4 + (ids.size() * 7 + first) % 300));
  return ids;
}

class ServerDisk : public ServerTest {
 protected:
  ServerDisk() {
    fs::create_directories(folder_);
    // Room for about 500 tokens; what leaves always comes back.
    EngineOptions engine = TestServer::engine_options();
    engine.kv_bytes = 0;
    engine.context = 512;
    engine.max_sequences = 1;
    engine.disk_bytes = size_t(64) << 20;
    engine.disk_folder = folder_;
    engine.disk_patience = 1e9;
    ServerOptions options = TestServer::server_options();
    options.kv_folder = folder_;
    serve(options, engine);
  }
  ~ServerDisk() override {
    EXPECT_TRUE(fs::is_empty(folder_));
    fs::remove_all(folder_);
  }
  static std::vector<TokenId> prompt(uint32_t first) { return prompt_of_200(first); }
  Json answer(uint32_t first) {
    return complete({{"max_tokens", 8}, {"temperature", 0}, {"quire", true}}, prompt(first));
  }

  std::string folder_ = testing::TempDir() + "/quire_server_disk_" + std::to_string(::getpid());
};

class ServerHost : public ServerTest {
 protected:
  ServerHost() {
    // Room for about 500 tokens; what leaves always comes back.
    EngineOptions engine = TestServer::engine_options();
    engine.kv_bytes = 0;
    engine.context = 512;
    engine.max_sequences = 1;
    engine.host_bytes = size_t(64) << 20;
    engine.host_patience = 1e9;
    serve(TestServer::server_options(), engine);
  }
  Json answer(uint32_t first) {
    return complete({{"max_tokens", 8}, {"temperature", 0}, {"quire", true}}, prompt_of_200(first));
  }
};

TEST_F(ServerHost, WhatLeftTheDeviceComesBackAndIsAccountedFor) {
  const Json before = answer(1);
  for (uint32_t other = 2; other < 6; ++other) answer(other);
  const Json gone = good(post("/kv/lookup", {{"prompt", prompt_of_200(1)}}));
  EXPECT_EQ(gone["cached_tokens"].get<int>() + gone["host_tokens"].get<int>(), 192) << "six whole pages";
  EXPECT_EQ(gone["disk_tokens"], 0);
  EXPECT_GT(gone["host_ms"], 0);

  const Json after = answer(1);
  EXPECT_EQ(text_of(after), text_of(before));
  EXPECT_EQ(after["quire"]["cache"]["cached_tokens"], 192);
  EXPECT_EQ(after["quire"]["cache"]["host_tokens"], gone["host_tokens"]);
  EXPECT_GT(after["quire"]["timings"]["host_ms"], 0);

  const Json kv = good(get("/kv"));
  const int brought = 6 - gone["cached_tokens"].get<int>() / 32;
  EXPECT_EQ(kv["groups"][0]["in_host"], kv["host"]["pages"]) << "the model has one group";
  EXPECT_EQ(gone["host_bytes"].get<double>(), brought * kv["groups"][0]["page_bytes"].get<double>());
  EXPECT_EQ(kv["host"]["loaded_pages"], brought);
  EXPECT_GT(kv["host"]["stored_pages"], 6);
  EXPECT_EQ(kv["events"]["counts"]["fetched"], brought);
  EXPECT_EQ(kv["events"]["counts"]["kept"], kv["host"]["stored_pages"]);
  EXPECT_TRUE(kv["disk"].is_null());
  EXPECT_EQ(metric("quire_kv_host_loaded_pages_total"), brought);
  EXPECT_EQ(metric("quire_kv_host_loaded_bytes_total"), gone["host_bytes"].get<double>());
  EXPECT_EQ(metric("quire_host_prompt_tokens_total"), gone["host_tokens"].get<double>());
  EXPECT_GT(metric("quire_kv_host_used_ratio"), 0);
}

TEST_F(ServerDisk, WhatLeftMemoryComesBackAndIsAccountedFor) {
  const Json before = answer(1);
  for (uint32_t other = 2; other < 6; ++other) answer(other);
  const Json gone = good(post("/kv/lookup", {{"prompt", prompt(1)}}));
  EXPECT_THAT(gone["why"].get<std::string>(), HasSubstr("evicted"));
  EXPECT_EQ(gone["cached_tokens"].get<int>() + gone["disk_tokens"].get<int>(), 192) << "six whole pages";

  const Json after = answer(1);
  EXPECT_EQ(text_of(after), text_of(before));
  EXPECT_EQ(after["quire"]["cache"]["cached_tokens"], 192);
  EXPECT_EQ(after["quire"]["cache"]["disk_tokens"], gone["disk_tokens"]);
  EXPECT_GT(after["quire"]["timings"]["disk_ms"], 0);

  const Json kv = good(get("/kv"));
  EXPECT_GT(kv["disk"]["written_pages"], 0);
  EXPECT_EQ(kv["groups"][0]["on_disk"], kv["disk"]["pages"]) << "the model has one group";
  EXPECT_EQ(kv["disk"]["read_pages"].get<int>(), 6 - gone["cached_tokens"].get<int>() / 32);
  EXPECT_EQ(kv["events"]["counts"]["loaded"], kv["disk"]["read_pages"]);
  EXPECT_GE(kv["events"]["counts"]["stored"], kv["disk"]["written_pages"]);
  EXPECT_EQ(kv["disk"]["failed_writes"].get<int>() + kv["disk"]["failed_reads"].get<int>(), 0);
  EXPECT_EQ(metric("quire_kv_disk_read_pages_total"), kv["disk"]["read_pages"].get<double>());
  EXPECT_EQ(metric("quire_kv_disk_read_bytes_total"),
            kv["disk"]["read_pages"].get<double>() * kv["groups"][0]["page_bytes"].get<double>());
  EXPECT_EQ(metric("quire_disk_prompt_tokens_total"), gone["disk_tokens"].get<double>());
  EXPECT_EQ(metric("quire_kv_disk_failed_pages_total"), 0);
}

class ServeHost : public Cli {};

TEST_F(ServeHost, HostMemoryForPagesThatAreThereAlreadyIsRefusedBeforeLoading) {
  const Outcome useless = quire("serve -m nowhere.gguf --device cpu --kv-host 1G");
  EXPECT_EQ(useless.code, 2);
  EXPECT_THAT(useless.err, HasSubstr("--kv-memory gives them more of it"));
  EXPECT_EQ(quire("serve --port 0 --device cpu --kv-host much").code, 2);
  const Outcome none = quire("serve -m nowhere.gguf --device cpu --kv-host 0");
  EXPECT_EQ(none.code, 1) << "there is no such model, and nothing else is wrong";
}

class ServeDisk : public Cli {};

TEST_F(ServeDisk, ADiskNeedsAFolderAndRoomForAPage) {
  const Outcome homeless = quire("serve --kv-disk 1G");
  EXPECT_EQ(homeless.code, 2);
  EXPECT_THAT(homeless.err, HasSubstr("--kv-disk needs --kv-dir"));
  const Outcome tiny = quire("serve --port 0 --kv-disk 1k --kv-dir " + path("."));
  EXPECT_EQ(tiny.code, 1);
  EXPECT_THAT(tiny.err, HasSubstr("bytes of disk are too few"));
  EXPECT_EQ(quire("serve --port 0 --kv-disk 1G --kv-dir " + path("nowhere")).code, 1);
}

}  // namespace
}  // namespace quire
