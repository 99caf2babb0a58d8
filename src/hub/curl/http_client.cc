#include "hub/http_client.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <string_view>

#include <curl/curl.h>

#include "base/error.h"
#include "base/late_library.h"

namespace quire {
namespace {

// Opened when something is fetched: few commands do, and it brings thirty others with it.
struct CurlLibrary {
  LateLibrary file{"libcurl.so.4",
                   "it is what fetches models, and all else works without it; install libcurl4 (apt-get "
                   "install libcurl4)"};
  decltype(::curl_global_init)* global_init = file.function<decltype(::curl_global_init)>("curl_global_init");
  decltype(::curl_easy_init)* easy_init = file.function<decltype(::curl_easy_init)>("curl_easy_init");
  decltype(::curl_easy_cleanup)* cleanup = file.function<decltype(::curl_easy_cleanup)>("curl_easy_cleanup");
  decltype(::curl_easy_reset)* reset = file.function<decltype(::curl_easy_reset)>("curl_easy_reset");
  decltype(::curl_easy_perform)* perform = file.function<decltype(::curl_easy_perform)>("curl_easy_perform");
  decltype(::curl_easy_strerror)* words = file.function<decltype(::curl_easy_strerror)>("curl_easy_strerror");
  decltype(::curl_slist_append)* append = file.function<decltype(::curl_slist_append)>("curl_slist_append");
  decltype(::curl_slist_free_all)* free_all =
      file.function<decltype(::curl_slist_free_all)>("curl_slist_free_all");
  CURLcode (*set)(CURL*, CURLoption,
                  ...) = file.function<CURLcode(CURL*, CURLoption, ...)>("curl_easy_setopt");
  CURLcode (*get)(CURL*, CURLINFO, ...) = file.function<CURLcode(CURL*, CURLINFO, ...)>("curl_easy_getinfo");

  CurlLibrary() {
    if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw Error("libcurl does not start");
  }
};

const CurlLibrary& curl_library() {
  static const CurlLibrary library;
  return library;
}

constexpr long kConnectSeconds = 20;
constexpr long kSilentSeconds = 30;  // without a byte
constexpr size_t kMostHeaderBytes = size_t(256) << 10;
constexpr std::array<std::string_view, 10> kHeadersRead{
    "location",      "link",          "retry-after",  "content-range", "content-length",
    "x-linked-etag", "x-linked-size", "x-error-code", "x-repo-commit", "x-error-message"};

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != text.npos) text.remove_suffix(1);
  while (!text.empty() && std::string_view(" \t").find(text.front()) != text.npos) text.remove_prefix(1);
  return text;
}

// One transfer, as libcurl's callbacks see it: what they throw must not go through C.
struct Transfer {
  CURL* curl;
  HttpBody& body;
  HttpReply reply;
  std::exception_ptr thrown;
  size_t header_bytes = 0;
};

size_t on_header(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::string_view line(data, size);
  try {
    transfer.header_bytes += size;
    if (transfer.header_bytes > kMostHeaderBytes) throw Error("the hub's reply has headers without end");
    if (line.starts_with("HTTP/")) transfer.reply.headers.clear();  // the one before was a 1xx or a proxy's
    const size_t colon = line.find(':');
    if (colon == line.npos) return size;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    if (std::ranges::find(kHeadersRead, name) != kHeadersRead.end())
      transfer.reply.headers[name] = trim(line.substr(colon + 1));
    return size;
  } catch (...) {
    transfer.thrown = std::current_exception();
    return 0;
  }
}

size_t on_body(char* data, size_t, size_t size, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  try {
    curl_library().get(transfer.curl, CURLINFO_RESPONSE_CODE, &transfer.reply.status);
    transfer.body.take(transfer.reply, std::as_bytes(std::span(data, size)));
    return size;
  } catch (...) {
    transfer.thrown = std::current_exception();
    return size == 0 ? 1 : 0;
  }
}

// Some troubles pass by themselves; a certificate that is wrong does not.
bool passes(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      return true;
    default:
      return false;
  }
}

// Certificates of one's own, where a proxy wants them: the names are those that other programs know.
const char* certificates() {
  for (const char* name : {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"})
    if (const char* path = std::getenv(name); path != nullptr && *path != '\0') return path;
  return nullptr;
}

struct Headers {
  curl_slist* list = nullptr;
  ~Headers() { curl_library().free_all(list); }
  void add(const std::string& line) { list = curl_library().append(list, line.c_str()); }
};

}  // namespace

struct HttpClient::State {
  CURL* curl = nullptr;
  std::array<char, CURL_ERROR_SIZE> words{};
  ~State() {
    if (curl != nullptr) curl_library().cleanup(curl);
  }
};

HttpClient::HttpClient() : state_(std::make_unique<State>()) {
  if ((state_->curl = curl_library().easy_init()) == nullptr) throw Error("libcurl does not start");
}

HttpClient::~HttpClient() = default;

HttpReply HttpClient::get(const HttpRequest& request, HttpBody& body) {
  const CurlLibrary& library = curl_library();
  CURL* curl = state_->curl;
  library.reset(curl);  // keeps its connections
  state_->words[0] = '\0';
  Transfer transfer{.curl = curl, .body = body, .reply = {}, .thrown = {}};
  Headers headers;
  if (!request.token.empty()) headers.add("Authorization: Bearer " + request.token);
  if (request.first_byte > 0) headers.add("Range: bytes=" + std::to_string(request.first_byte) + "-");
  const std::string url = request.url.text();
  library.set(curl, CURLOPT_URL, url.c_str());
#if LIBCURL_VERSION_NUM >= 0x075500
  library.set(curl, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  library.set(curl, CURLOPT_PROTOCOLS, long(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
  library.set(curl, CURLOPT_FOLLOWLOCATION, 0L);
  if (const char* bundle = certificates()) library.set(curl, CURLOPT_CAINFO, bundle);
  library.set(curl, CURLOPT_NETRC, long(CURL_NETRC_IGNORED));
  library.set(curl, CURLOPT_NOSIGNAL, 1L);
  library.set(curl, CURLOPT_USERAGENT, "quire");
  library.set(curl, CURLOPT_HTTPHEADER, headers.list);
  library.set(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  library.set(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  library.set(curl, CURLOPT_LOW_SPEED_TIME, kSilentSeconds);
  library.set(curl, CURLOPT_TIMEOUT, request.whole_seconds);
  library.set(curl, CURLOPT_BUFFERSIZE, 256L << 10);
  library.set(curl, CURLOPT_ERRORBUFFER, state_->words.data());
  library.set(curl, CURLOPT_HEADERFUNCTION, on_header);
  library.set(curl, CURLOPT_HEADERDATA, &transfer);
  library.set(curl, CURLOPT_WRITEFUNCTION, on_body);
  library.set(curl, CURLOPT_WRITEDATA, &transfer);
  const CURLcode code = library.perform(curl);
  library.set(curl, CURLOPT_ERRORBUFFER, nullptr);
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  library.get(curl, CURLINFO_RESPONSE_CODE, &transfer.reply.status);
  if (code != CURLE_OK) {
    transfer.reply.trouble = printable(state_->words[0] != '\0' ? state_->words.data() : library.words(code));
    transfer.reply.may_pass = passes(code);
  }
  return transfer.reply;
}

}  // namespace quire
