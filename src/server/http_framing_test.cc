#include "server/http_framing.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr size_t kMostHead = 4096, kMostBody = 1000;

// What came of the first request in some bytes.
struct Read {
  int refused = 0;  // the status; 0 if it was not
  bool complete = false;
  RequestHead head;
  std::string body;
  size_t taken = 0;
};

Read read(std::string_view bytes, size_t piece = SIZE_MAX) {
  RequestReader reader(kMostHead);
  Read result;
  while (true) {
    if (reader.state() == RequestReader::State::admitted) reader.take_body(kMostBody);
    if (!reader.wants_more() || result.taken == bytes.size()) break;
    result.taken += reader.take(bytes.substr(result.taken, piece));
  }
  if (reader.state() == RequestReader::State::wrong) result.refused = reader.problem().status;
  result.complete = reader.state() == RequestReader::State::done;
  result.head = reader.head();
  result.body = reader.body();
  return result;
}

int refused(std::string_view bytes) {
  return read(bytes).refused;
}

std::string post(std::string_view headers, std::string_view body = "") {
  return fmt::format("POST /a HTTP/1.1\r\nHost: x\r\n{}\r\n{}", headers, body);
}

TEST(HttpFraming, ARequestEndsWhereItsLengthSays) {
  const Read got = read(post("Content-Length: 5\r\n", "hello, world"));
  EXPECT_TRUE(got.complete);
  EXPECT_EQ(got.body, "hello");
  EXPECT_EQ(got.taken, post("Content-Length: 5\r\n", "hello").size());
  EXPECT_EQ(got.head.method, "POST");
  EXPECT_EQ(got.head.target, "/a");
  EXPECT_FALSE(read(post("Content-Length: 5\r\n", "hell")).complete);
}

TEST(HttpFraming, ChunksAreJoinedAndWhatIsBehindThemIsDropped) {
  const Read got = read(post("Transfer-Encoding: Chunked\r\n",
                             "5\r\nhello\r\n2;name=\"v\"\r\n, \r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\nGET"));
  EXPECT_TRUE(got.complete);
  EXPECT_EQ(got.body, "hello, 0123456789");
  EXPECT_EQ(got.head.fields.size(), 2u);
}

TEST(HttpFraming, TrailersNeverBecomeHeaders) {
  const Read got =
      read(post("Transfer-Encoding: chunked\r\n",
                "1\r\nx\r\n0\r\nAuthorization: Bearer k\r\nHost: y\r\nContent-Length: 9\r\n\r\n"));
  EXPECT_TRUE(got.complete);
  const HttpRequest request = request_of(got.head);
  EXPECT_EQ(request.header("authorization"), "");
  EXPECT_EQ(request.header("host"), "x");
  EXPECT_EQ(request.header("content-length"), "");
}

TEST(HttpFraming, ALengthThatIsNoneOrComesTwiceIsRefused) {
  for (const char* headers :
       {"Content-Length: \r\n", "Content-Length: -1\r\n", "Content-Length: +1\r\n", "Content-Length: 0x1\r\n",
        "Content-Length: 1 1\r\n", "Content-Length: 1, 1\r\n", "Content-Length: 1,\r\n",
        "Content-Length: 1.0\r\n", "Content-Length: 9999999999999999999\r\n",
        "Content-Length: 1\r\nContent-Length: 1\r\n", "Content-Length: 1\r\ncontent-length: 2\r\n",
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n"})
    EXPECT_EQ(refused(post(headers, "x")), 400) << headers;
  EXPECT_EQ(refused(post("Content-Length: 1001\r\n")), 413);
}

TEST(HttpFraming, ATransferCodingOtherThanChunkedIsRefused) {
  for (const char* headers :
       {"Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: chunkedx\r\n",
        "Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: \r\n", "Transfer-Encoding: \"chunked\"\r\n", "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"})
    EXPECT_EQ(refused(post(headers, "0\r\n\r\n")), 400) << headers;
  EXPECT_EQ(refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
}

TEST(HttpFraming, ExactlyOneHostIsNamed) {
  EXPECT_EQ(refused("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.1\r\nHost: a\r\nHOST: b\r\n\r\n"), 400);
  EXPECT_EQ(refused("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
  for (const char* host : {"a, b", "a b", "a/b", "user@a", "a?b", "a#b", "a\\b", "<a>"})
    EXPECT_EQ(refused(fmt::format("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host)), 400) << host;
  for (const char* host : {"", "a", "a:80", "[::1]:8080", "127.0.0.1", "a_b.example"})
    EXPECT_EQ(refused(fmt::format("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host)), 0) << host;
  EXPECT_EQ(refused("GET / HTTP/1.0\r\n\r\n"), 0);
}

TEST(HttpFraming, AHeaderThatDecidesSomethingComesOnce) {
  for (const char* name : {"Authorization", "Origin", "Content-Type", "Expect", "Content-Encoding"}) {
    const std::string line = fmt::format("{}: 100-continue\r\n", name);
    EXPECT_EQ(refused(post(line)), 0) << name;
    EXPECT_EQ(refused(post(line + line)), 400) << name;
  }
  const Read lists = read(post("Accept: a\r\naccept: b\r\n"));
  EXPECT_EQ(request_of(lists.head).header("accept"), "a, b");
}

TEST(HttpFraming, LinesThatCouldBeReadInTwoWaysAreRefused) {
  const std::string good = "GET / HTTP/1.1\r\nHost: x\r\nX: a b\t\xc3\xa9\r\n\r\n";
  EXPECT_TRUE(read(good).complete);
  const std::string_view wrong[] = {
      "GET / HTTP/1.1\nHost: x\n\n",                         // bare LF
      "GET / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n",             //
      "GET / HTTP/1.1\r\nHost: x\r\n\n",                     //
      "GET / HTTP/1.1\r\nHost: x\rX: y\r\n\r\n",             // bare CR
      "GET / HTTP/1.1\r\nHost: x\r\r\n\r\n",                 //
      "GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",     // a folded line
      "GET / HTTP/1.1\r\nHost: x\r\nX:\r\n\tb\r\n\r\n",      //
      "GET / HTTP/1.1\r\n Host: x\r\n\r\n",                  //
      "GET / HTTP/1.1\r\nHost : x\r\n\r\n",                  // a space before the colon
      "GET / HTTP/1.1\r\nHost\t: x\r\n\r\n",                 //
      "GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",            // no name
      "GET / HTTP/1.1\r\nHost: x\r\nX\r\n\r\n",              // no colon
      "GET / HTTP/1.1\r\nHost: x\r\n\xc3\xa9: y\r\n\r\n",    // a name in letters that names do not have
      "GET / HTTP/1.1\r\nHost: x\r\nX(y): z\r\n\r\n",        //
      {"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 38},  // NUL
      {"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", 28},           //
      "GET / HTTP/1.1\r\nHost: x\r\nX: a\x01\r\n\r\n",       // other control characters
      "GET / HTTP/1.1\r\nHost: x\r\nX: a\x7f\r\n\r\n",       //
      "\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",               // an empty line in front
  };
  for (const std::string_view bytes : wrong) EXPECT_EQ(refused(bytes), 400) << bytes;
}

TEST(HttpFraming, AFirstLineThatIsNotMethodPathVersionIsRefused) {
  for (const char* line : {"GET",
                           "GET /",
                           "GET  / HTTP/1.1",
                           "GET / HTTP/1.1 ",
                           " GET / HTTP/1.1",
                           "GET / x HTTP/1.1",
                           "GET\t/\tHTTP/1.1",
                           "GET / HTTP/1.2",
                           "GET / HTTP/2.0",
                           "GET / http/1.1",
                           "GET / HTTP/1.1x",
                           "G(T / HTTP/1.1",
                           "GET /\xc3\xa9 HTTP/1.1",
                           "GET http://x/ HTTP/1.1",
                           "GET https://x/ HTTP/1.1",
                           "GET x HTTP/1.1",
                           "GET * HTTP/1.1",
                           "OPTIONS * HTTP/1.1",
                           "CONNECT x:80 HTTP/1.1",
                           "GET ?a HTTP/1.1",
                           "GET /a#b HTTP/1.1",
                           "GET /?a#b HTTP/1.1"})
    EXPECT_EQ(refused(fmt::format("{}\r\nHost: x\r\n\r\n", line)), 400) << line;
  EXPECT_EQ(refused("BREW //a?b=c&&d HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
}

TEST(HttpFraming, ChunksThatAreNotAsTheySayAreRefused) {
  const char* chunked = "Transfer-Encoding: chunked\r\n";
  for (const char* chunks : {"\r\n", "x\r\n", "-1\r\n", "0x1\r\nx\r\n", " 1\r\nx\r\n", "1 \r\nx\r\n",
                             "1\nx\r\n", "1\r\nxy\r\n", "1\r\nx\n", "1\r\nx0\r\n\r\n", ";a\r\n", "1\rx\r\n",
                             "0000000000000001\r\nx\r\n", "ffffffffffffffffff\r\n", "0\r\nno colon\r\n\r\n",
                             "0\r\n X: y\r\n\r\n", "0\r\nX: y\n\r\n", "0\n\n", "0\r\n\n"})
    EXPECT_EQ(refused(post(chunked, chunks)), 400) << chunks;
  EXPECT_EQ(refused(post(chunked, "3e9\r\n")), 413);
  EXPECT_EQ(refused(post(chunked, "1f4\r\n" + std::string(500, 'a') + "\r\n1f5\r\n")), 413);
  EXPECT_EQ(refused(post(chunked, "fffffffffffffff\r\n")), 413);
  EXPECT_EQ(refused(post(chunked, "1;" + std::string(kMostHead, 'a'))), 431);
  EXPECT_EQ(refused(post(chunked, "0\r\nX: " + std::string(kMostHead, 'a'))), 431);
}

TEST(HttpFraming, AHeadThatIsTooLongIsRefusedBeforeItIsComplete) {
  EXPECT_EQ(refused("GET /" + std::string(kMostHead, 'a')), 431);
  EXPECT_EQ(refused(post("X: " + std::string(kMostHead, 'a'))), 431);
}

TEST(HttpFraming, WhoExpectsAnythingButContinueIsRefused) {
  EXPECT_EQ(refused(post("Expect: a miracle\r\n")), 417);
  RequestReader reader(kMostHead);
  reader.take(post("Expect: 100-Continue\r\nContent-Length: 3\r\n"));
  EXPECT_EQ(reader.state(), RequestReader::State::admitted);
  EXPECT_TRUE(reader.judgement().waits_for_continue);
}

TEST(HttpFraming, TheConnectionStaysAsTheVersionAndTheHeaderSay) {
  const auto stays = [](const std::string& bytes) {
    RequestReader reader(kMostHead);
    reader.take(bytes);
    return reader.judgement().keep_alive;
  };
  EXPECT_TRUE(stays("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_FALSE(stays("GET / HTTP/1.1\r\nHost: x\r\nConnection: TE, Close\r\n\r\n"));
  EXPECT_FALSE(stays("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(stays("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  EXPECT_FALSE(stays("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n"));
}

TEST(HttpFraming, MemoryGrowsWithWhatHasComeNotWithWhatIsAnnounced) {
  RequestReader reader(kMostHead);
  reader.take(post("Content-Length: 1000000000000\r\n"));
  reader.take_body(uint64_t(1) << 60);
  reader.take("abc");
  EXPECT_EQ(reader.state(), RequestReader::State::body);
  EXPECT_LT(reader.body().capacity(), 1000u);
}

TEST(HttpFraming, TheSameRequestsComeOutOfPiecesOfAnySize) {
  const std::string all[] = {
      post("Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
      post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n10;x\r\n0123456789abcdef\r\n00\r\nX: y\r\n\r\n"),
      post("Content-Length: 10\r\nX: y\r\n", "0123456789"),
      "GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
  };
  for (const std::string& bytes : all) {
    const Read whole = read(bytes);
    EXPECT_TRUE(whole.complete || whole.refused == 400);
    for (size_t piece = 1; piece <= bytes.size(); ++piece) {
      const Read cut = read(bytes, piece);
      EXPECT_EQ(cut.complete, whole.complete);
      EXPECT_EQ(cut.refused, whole.refused);
      EXPECT_EQ(cut.body, whole.body);
      EXPECT_EQ(cut.taken, whole.taken);
      EXPECT_EQ(cut.head.fields, whole.head.fields);
    }
  }
}

TEST(HttpFraming, PathAndQueryAreDecoded) {
  const Read got = read("GET /a%20b+%2f%zz?c+d=%41&e&=f%3d HTTP/1.1\r\nHost: x\r\n\r\n");
  const HttpRequest request = request_of(got.head);
  EXPECT_EQ(request.path, "/a b+/%zz");
  EXPECT_EQ(request.query.at("c d"), "A");
  EXPECT_EQ(request.query.at("e"), "");
  EXPECT_EQ(request.query.at(""), "f=");
}

}  // namespace
}  // namespace quire
