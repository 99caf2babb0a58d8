// Snapshots as users meet them: saved and loaded by the program and the server, and by programs that are killed.
#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <sys/resource.h>

#include "cli_fixture.h"
#include "engine/loaded_model.h"
#include "kv/tiers/test_snapshots.h"
#include "server_fixture.h"

namespace quire {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// ---- quire run ---------------------------------------------------------------------------------------------------

class SnapshotsOfRuns : public Cli {
 protected:
  static std::string long_prompt() {
    std::string words;
    for (int i = 0; i < 40; ++i) words += "the fox number " + std::to_string(i) + " sees a lamp, ";
    return words;
  }
  std::string ask(const std::string& options) const {
    return "run --temperature 0 -n 24 --json --threads 1 " + options + " -";
  }
};

TEST_F(SnapshotsOfRuns, ALoadedPrefixGivesTheSameTokensAndIsNotComputedAgain) {
  for (const std::string kv : {"f16", "k=int8,v=q4", "int8,0:k=f16,v=q4"}) {
    const Json cold = quire_json(ask("--kv " + kv + " --save-kv " + path("kept")), long_prompt());
    EXPECT_EQ(cold["account"]["cached_tokens"], 0);
    EXPECT_THAT(slurp(path("err")), HasSubstr("[saved "));
    const Json warm = quire_json(ask("--kv " + kv + " --load-kv " + path("kept")), long_prompt());
    EXPECT_THAT(slurp(path("err")), HasSubstr("[restored "));
    EXPECT_EQ(warm["token_ids"], cold["token_ids"]);
    EXPECT_EQ(warm["account"]["cached_tokens"], cold["prompt_tokens"].get<int>() - 1);
    const Json longer = quire_json(ask("--kv " + kv + " --load-kv " + path("kept")), long_prompt() + "and?");
    const Json anew = quire_json(ask("--kv " + kv), long_prompt() + "and?");
    EXPECT_EQ(longer["token_ids"], anew["token_ids"]);
    EXPECT_GT(longer["account"]["cached_tokens"], 100);
  }
}

TEST_F(SnapshotsOfRuns, OneThatDoesNotFitIsAWarningAndTheAnswerComesAllTheSame) {
  const Json cold = quire_json(ask("--kv f16 --save-kv " + path("kept")), "Foxes are red.");
  const auto warned = [&](const std::string& options) {
    const Json answer = quire_json(ask(options + " --load-kv " + path("kept")), "Foxes are red.");
    EXPECT_EQ(answer["account"]["cached_tokens"], 0);
    EXPECT_GT(answer["completion_tokens"], 0);
    return slurp(path("err"));
  };
  EXPECT_THAT(warned("--kv int8"), HasSubstr("was made with --kv f16, this run uses int8"));
  EXPECT_THAT(warned("--kv f16,last:v=int8"), HasSubstr("with --kv f16, this run uses f16,6:k=f16,v=int8"));
  EXPECT_THAT(warned("--kv f16 --kernels exact"), HasSubstr("this run uses 'exact'"));
  EXPECT_THAT(warned("--kv f16 -m house-draft"), HasSubstr("was made by"));
  EXPECT_THAT(warned("--kv f16 --no-kv-cache"), HasSubstr("nothing can be restored"));
  fs::resize_file(path("kept"), fs::file_size(path("kept")) - 1);
  EXPECT_THAT(warned("--kv f16"), HasSubstr("is cut short"));
}

TEST_F(SnapshotsOfRuns, AFullDiskIsASentenceAfterTheAnswerAndTheOldFileStays) {
  write("kept", "old");
  const std::string program = std::string(QUIRE_BINARY_DIR) + "/quire ";
  const std::string command = "trap '' XFSZ; ulimit -f 8; echo foxes are red | " + program +
                              ask("--save-kv " + path("kept")) + " >" + path("out") + " 2>" + path("err");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_GT(parse_json(slurp(path("out")), "the output")["completion_tokens"], 0);
  EXPECT_THAT(slurp(path("err")), HasSubstr("File too large"));
  EXPECT_EQ(slurp(path("kept")), "old");
  EXPECT_FALSE(fs::exists(path(".kept.part")));
}

// ---- quire serve -------------------------------------------------------------------------------------------------

class SnapshotsOfServers : public ServerTest {
 protected:
  SnapshotsOfServers() { fs::create_directories(folder_); }
  ~SnapshotsOfServers() override { fs::remove_all(folder_); }

  ServerOptions options(const std::string& restore = "") const {
    ServerOptions options = TestServer::server_options();
    options.kv_folder = folder_;
    options.kv_restore = restore;
    return options;
  }
  static std::vector<TokenId> prompt(uint32_t first, uint32_t tokens) {
    std::vector<TokenId> ids = {1, 10 + first};
    while (ids.size() < tokens) ids.push_back(TokenId(4 + (ids.size() * 7 + first) % 300));
    return ids;
  }
  Json answer(uint32_t first) {
    return complete({{"max_tokens", 8}, {"temperature", 0}, {"quire", true}}, prompt(first, 200));
  }

  std::string folder_ = testing::TempDir() + "/quire_snapshots_" + std::to_string(::getpid());
};

TEST_F(SnapshotsOfServers, APrefixSurvivesARestart) {
  serve(options());
  EXPECT_EQ(ask("POST", "/kv/save").error("code"), "not_cached");
  const Json before = answer(1);
  answer(2);
  const Json saved = good(ask("POST", "/kv/save"));
  EXPECT_EQ(saved["name"], "cache.kv");
  EXPECT_EQ(saved["bytes"], fs::file_size(folder_ + "/cache.kv"));
  const Json kv = good(get("/kv"));
  EXPECT_EQ(saved["pages"], kv["groups"][0]["cached"]);

  serve(options("cache.kv"));
  const Json restored = good(get("/kv"));
  EXPECT_EQ(restored["groups"][0]["cached"], saved["pages"]);
  EXPECT_EQ(restored["groups"][0]["held"], 0);
  EXPECT_EQ(restored["events"]["counts"]["restored"], saved["pages"]);
  EXPECT_EQ(good(post("/kv/lookup", {{"prompt", prompt(2, 200)}}))["cached_tokens"], 199);
  const Json after = answer(1);
  EXPECT_EQ(text_of(after), text_of(before));
  EXPECT_EQ(after["usage"]["prompt_tokens_details"]["cached_tokens"], 199);
  EXPECT_EQ(metric("quire_kv_restored_pages_total"), saved["pages"].get<double>());
}

TEST_F(SnapshotsOfServers, SavingWhileAnswersRunHarmsNone) {
  serve(options());
  const Json alone = answer(1);
  const Running running = start_endless({}, prompt(3, 400));
  for (int i = 0; i < 5; ++i) {
    EXPECT_GT(good(post("/kv/save", {{"name", "live.kv"}}))["pages"], 0);
    EXPECT_TRUE(running.client->read_event().has_value());
  }
  EXPECT_EQ(text_of(answer(1)), text_of(alone));
  serve(options("live.kv"));
  EXPECT_GE(good(post("/kv/lookup", {{"prompt", prompt(3, 400)}}))["cached_tokens"], 399);
}

TEST_F(SnapshotsOfServers, NamesLeadNowhereElse) {
  serve(options());
  answer(1);
  const std::string large(101, 'a');
  for (const std::string name :
       {"", ".", "..", "../x", "a/b", "/etc/x", ".hidden", "a b", "a\\b", "ä", large.c_str()}) {
    const HttpReply reply = post("/kv/save", {{"name", name}});
    EXPECT_EQ(reply.status, 400) << name;
    EXPECT_EQ(reply.error("param"), "name");
  }
  EXPECT_EQ(post("/kv/save", {{"name", 7}}).status, 400);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SnapshotsOfServers, WithoutAFolderNothingIsSavedAndABadFileIsOnlySaid) {
  EXPECT_EQ(ask("POST", "/kv/save").status, 409);
  EXPECT_THAT(ask("POST", "/kv/save").error("message"), HasSubstr("--kv-dir"));
  std::ofstream(folder_ + "/bad.kv") << "something else";
  serve(options("bad.kv"));
  EXPECT_EQ(good(get("/kv"))["groups"][0]["cached"], 0);
  EXPECT_GT(answer(1)["usage"]["completion_tokens"], 0);
}

TEST_F(SnapshotsOfServers, AFolderThatIsGoneIsAnErrorThatSaysSo) {
  serve(options());
  answer(1);
  fs::remove_all(folder_);
  const HttpReply reply = ask("POST", "/kv/save");
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.error("message"), HasSubstr("cannot write"));
  EXPECT_GT(answer(1)["usage"]["completion_tokens"], 0);
}

// ---- kill -9 -----------------------------------------------------------------------------------------------------

class KilledSavers : public SnapshotTest {
 protected:
  std::unique_ptr<HostKv> filled(uint32_t from) {
    auto kv = make(shapes_, 512);
    compute(*kv, counted(1500, from));
    return kv;
  }
  const std::vector<KvLayerShape> shapes_ = std::vector<KvLayerShape>(8, layer(KvFormat::f32));
};

// QUIRE_KILLS sets how many; a few are enough for every day.
TEST_F(KilledSavers, LeaveTheOldFileOrTheNewOneAndBothAreWhole) {
  const char* wanted = std::getenv("QUIRE_KILLS");
  const int kills = wanted == nullptr ? 10 : std::atoi(wanted);
  const auto first = filled(0), second = filled(100'000);
  const Pages pages[] = {pages_of(*first), pages_of(*second)};
  save(*first, path());
  int in_the_middle = 0, found[2] = {0, 0};
  for (int i = 0; i < kills; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int round = 0;; ++round) save(round % 2 == 0 ? *second : *first, path());
    }
    ::usleep(useconds_t(random_() % 30'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    in_the_middle += fs::exists(path(".kept.part")) ? 1 : 0;
    const auto kv = make(shapes_, 512);
    ASSERT_EQ(refusal(*kv, identity(), path()), "");
    const Pages now = pages_of(*kv);
    ASSERT_TRUE(now == pages[0] || now == pages[1]);
    ++found[now == pages[0] ? 0 : 1];
    kv->check_invariants();
  }
  std::cout << kills << " kills, " << in_the_middle << " in the middle of saving; found the first file "
            << found[0] << " times and the second " << found[1] << " times\n";
  save(*second, path());
  EXPECT_FALSE(fs::exists(path(".kept.part"))) << "what a killed one left is taken over";
}

}  // namespace
}  // namespace quire
