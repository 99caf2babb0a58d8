#include "hub/url.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::string followed(const char* from, const char* location) {
  const std::optional<Url> to = redirected(*parse_url(from), location);
  return to ? to->text() : "";
}

TEST(Url, IsReadInThePartsThatDecideWhoIsAsked) {
  const std::optional<Url> url = parse_url("HTTPS://HuggingFace.co/a/b?c=d#e");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->host, "huggingface.co");
  EXPECT_EQ(url->port, 443);
  EXPECT_EQ(url->rest, "/a/b?c=d");
  EXPECT_EQ(url->text(), "https://huggingface.co/a/b?c=d");
  EXPECT_EQ(parse_url("http://[::1]:8080/x")->text(), "http://[::1]:8080/x");
  EXPECT_EQ(parse_url("http://a?b")->text(), "http://a/?b");
}

TEST(Url, IsNothingIfItIsOfAnotherKind) {
  for (const char* text :
       {"", "huggingface.co", "file:///etc/passwd", "ftp://a/b", "http://", "http:///a", "http://a:b/",
        "http://a:0/", "http://a:70000/", "http://u:p@a/", "http://a b/", "http://a/\n", "http://a\\b/",
        "javascript:alert(1)", "http://\xc3\xa4/", "http://a:80:80/"})
    EXPECT_FALSE(parse_url(text)) << text;
}

TEST(Url, IsTheSameOriginOnlyWithSchemeHostAndPort) {
  const Url hub = *parse_url("https://huggingface.co/x");
  EXPECT_TRUE(hub.same_origin(*parse_url("https://HUGGINGFACE.co:443/y")));
  for (const char* other : {"http://huggingface.co/x", "https://huggingface.co:8443/x",
                            "https://cdn.huggingface.co/x", "https://huggingface.co.evil/x"})
    EXPECT_FALSE(hub.same_origin(*parse_url(other))) << other;
}

TEST(Url, IsFollowedRelativelyAndNeverDownToHttp) {
  EXPECT_EQ(followed("https://a/b/c?d", "/e"), "https://a/e");
  EXPECT_EQ(followed("https://a/b/c?d=/", "e?f=http://x"), "https://a/b/e?f=http://x");
  EXPECT_EQ(followed("https://a/b", "//c/d"), "https://c/d");
  EXPECT_EQ(followed("http://a:1/b", "https://c/d"), "https://c/d");
  EXPECT_EQ(followed("http://a:1/b", "http://c/d"), "http://c/d");
  EXPECT_EQ(followed("https://a/b", "http://a/b"), "");
  EXPECT_EQ(followed("https://a/b", "file:///etc/passwd"), "");
}

TEST(Url, EscapesWhatIsSpecial) {
  EXPECT_EQ(escaped_path("a b/c?d#e%"), "a%20b/c%3Fd%23e%25");
  EXPECT_EQ(escaped_part("refs/pr/1"), "refs%2Fpr%2F1");
  EXPECT_EQ(printable("a\x1b[31m\nb"), "a?[31m?b");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
}

}  // namespace
}  // namespace quire
