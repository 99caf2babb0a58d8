// What columns matter: found out, written, and taken by quantize, as a user does it.
#include "cli_fixture.h"
#include "model/gguf.h"

namespace quire {
namespace {

class ImatrixCommand : public Cli {
 protected:
  void find_out() {
    write("text.txt", "the cat sat on the mat and the dog sat on the log; who sat where, and on what?");
    const Outcome outcome = quire("imatrix -m " + llama_ + " " + path("text.txt") + " -o " + path("i.gguf"));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "tensors")) << outcome.err;
  }
};

TEST_F(ImatrixCommand, WritesWhatQuantizeTakes) {
  find_out();
  const GgufFile file(path("i.gguf"));
  EXPECT_EQ(file.metadata().text("general.type"), "imatrix");
  EXPECT_EQ(file.metadata().texts("imatrix.datasets"), std::vector<std::string>{"text.txt"});
  ASSERT_NE(file.find("blk.0.attn_q.weight.in_sum2"), nullptr);
  ASSERT_NE(file.find("blk.0.attn_q.weight.counts"), nullptr);
  EXPECT_EQ(file.find("output.weight.in_sum2"), nullptr);

  const std::string plain = "quantize -m " + llama_ + " --type q4_0 -o ";
  ASSERT_EQ(quire(plain + path("plain.gguf")).code, 0);
  const Outcome with = quire(plain + path("with.gguf") + " --imatrix " + path("i.gguf"));
  ASSERT_EQ(with.code, 0) << with.err;
  EXPECT_TRUE(contains(with.err, "tells nothing of")) << with.err;  // the embedding
  EXPECT_NE(slurp(path("plain.gguf")), slurp(path("with.gguf")));
  EXPECT_EQ(quire("run -m " + path("with.gguf") + " --raw -n 3 hi").code, 0);
}

TEST_F(ImatrixCommand, AFileThatIsNoneIsAnErrorWithItsName) {
  write("no.imatrix", "not one");
  const Outcome outcome = quire("quantize -m " + llama_ + " --type q4_0 -o " + path("a.gguf") +
                                " --imatrix " + path("no.imatrix"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "no.imatrix")) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(path("a.gguf")));
}

TEST_F(ImatrixCommand, AnEmptyTextIsAnError) {
  EXPECT_EQ(quire("imatrix -m " + llama_ + " - -o " + path("i.gguf")).code, 1);
}

}  // namespace
}  // namespace quire
