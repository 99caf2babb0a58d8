#include "hub/hub_client.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "hub/transfer_words.h"

namespace quire {
namespace {

TEST(HubClient, TakesOnlyRangesOfTheFileItAskedFor) {
  EXPECT_EQ(first_byte_of("bytes 100-199/200", 200), 100u);
  EXPECT_EQ(first_byte_of("bytes 0-199/*", 200), 0u);
  for (const char* wrong :
       {"", "bytes", "bytes */200", "bytes 100-199/201", "bytes 100-200/200", "bytes 9-8/200",
        "items 1-2/200", "bytes 1-2/200x", "bytes -1-2/200", "bytes 99999999999999999999-2/200"})
    EXPECT_FALSE(first_byte_of(wrong, 200)) << wrong;
}

TEST(HubClient, WaitsLongerEachTimeOrAsLongAsItIsTold) {
  EXPECT_EQ(seconds_before(0, ""), 0.5);
  EXPECT_EQ(seconds_before(3, ""), 4.0);
  EXPECT_EQ(seconds_before(100, ""), 32.0);
  EXPECT_EQ(seconds_before(0, "0"), 0.0);
  EXPECT_EQ(seconds_before(0, "120"), 120.0);
  EXPECT_EQ(seconds_before(0, "Wed, 21 Oct 2026 07:28:00 GMT"), 0.5);
  EXPECT_FALSE(seconds_before(0, "301"));
  EXPECT_FALSE(seconds_before(0, "99999999999999999999"));
}

TEST(HubPlaces, AreWhereHuggingFacesProgramsHaveThem) {
  std::map<std::string, std::string> set = {{"HOME", "/home/me"}};
  const auto places = [&] {
    return HubPlaces::from([&](const char* name) {
      const auto found = set.find(name);
      return found == set.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(places().cache, "/home/me/.cache/huggingface/hub");
  EXPECT_EQ(places().endpoint, "https://huggingface.co");
  EXPECT_EQ(places().token, "");
  EXPECT_FALSE(places().offline);
  set["XDG_CACHE_HOME"] = "/c";
  EXPECT_EQ(places().cache, "/c/huggingface/hub");
  set["HF_HOME"] = "~/hf";
  EXPECT_EQ(places().cache, "/home/me/hf/hub");
  set["HF_HUB_CACHE"] = "/h";
  EXPECT_EQ(places().cache, "/h");
  set["HF_TOKEN"] = " hf_x\n";
  EXPECT_EQ(places().token, "hf_x");
  set["HF_HUB_OFFLINE"] = "true";
  EXPECT_TRUE(places().offline);
  set["HF_ENDPOINT"] = "http://mirror:8080/";
  EXPECT_EQ(places().endpoint, "http://mirror:8080");
  set["HF_ENDPOINT"] = "mirror";
  EXPECT_THROW(places(), Error);
  set.erase("HF_ENDPOINT");
  set["HF_TOKEN"] = "hf_x\r\nHost: evil";
  EXPECT_THROW(places(), Error);
}

TEST(TransferWords, TellHowFarHowFastAndHowLong) {
  EXPECT_EQ(bytes_in_words(999), "999 bytes");
  EXPECT_EQ(bytes_in_words(807'700'000), "808 MB");
  EXPECT_EQ(progress_line(1'000'000'000, 2'000'000'000, 50e6, 80),
            "[###############...............]  50 %  1.0 GB of 2.0 GB  50.0 MB/s  0:20 left");
  EXPECT_EQ(progress_line(0, 2'000'000, 0, 24), "  0 %  0 bytes of 2.0 MB");
  EXPECT_EQ(progress_line(5, 5, 0, 10).size(), 10u);
  EXPECT_NE(progress_line(1, uint64_t(1) << 50, 1, 80).find("days left"), std::string::npos);
  EXPECT_NE(progress_line(0, 36'610'000, 10'000, 80).find("1:01:01 left"), std::string::npos);
}

}  // namespace
}  // namespace quire
