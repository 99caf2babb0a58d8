// The keys of `quire serve`, as its user gives them.
#include <gmock/gmock.h>

#include "cli_fixture.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

class ServeKeys : public Cli {
 protected:
  // The keys are read before a folder that is not there ends it.
  Outcome serve_with(const std::string& name, const std::string& text, const std::string& mode) {
    write(name, text);
    std::filesystem::permissions(path(name),
                                 mode == "600" ? std::filesystem::perms(0600) : std::filesystem::perms(0640));
    return quire("serve -m " + llama_ + " --port 0 --kv-dir " + path("nowhere") + " --api-key-file " +
                 path(name));
  }
};

TEST_F(ServeKeys, AFileOfKeysThatIsNotThereOrHasNoneIsAnError) {
  const Outcome missing = quire("serve -m " + llama_ + " --port 0 --api-key-file " + path("missing"));
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, HasSubstr("cannot open " + path("missing")));
  const Outcome none = serve_with("none", "# no key\n\n   \n\t# none either\n", "600");
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("has no key"));
}

TEST_F(ServeKeys, AFileThatOthersMayReadIsWarnedOf) {
  const Outcome open = serve_with("open", "# of ann\n  secret of ann  \r\n", "640");
  EXPECT_THAT(open.err, HasSubstr("others than its owner may read the keys"));
  EXPECT_THAT(open.err, HasSubstr("is not a folder for snapshots"));
  EXPECT_THAT(open.err, Not(HasSubstr("secret of ann")));
  const Outcome good = serve_with("good", "secret of ann\n", "600");
  EXPECT_THAT(good.err, Not(HasSubstr("may read the keys")));
  EXPECT_THAT(good.err, HasSubstr("is not a folder for snapshots"));
}

TEST_F(ServeKeys, ALineThatIsTooLongIsSaidWhere) {
  const Outcome outcome = serve_with("long", "one\n" + std::string(5000, 'x') + "\n", "600");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("line 2"));
}

TEST_F(ServeKeys, HelpSaysWhatSharingReveals) {
  const std::string help = quire("serve --help").out;
  for (const char* word : {"--share-prefixes", "cached_tokens", "/kv/lookup", "--api-key-file",
                           "--no-inspection", "--max-priority", "--max-pins"})
    EXPECT_THAT(help, HasSubstr(word));
}

TEST_F(ServeKeys, AModelThatIsAPipeIsRefusedAtOnce) {
  ASSERT_EQ(std::system(("mkfifo " + path("pipe.gguf")).c_str()), 0);
  const Outcome outcome = quire("run -m " + path("pipe.gguf") + " hello");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace quire
