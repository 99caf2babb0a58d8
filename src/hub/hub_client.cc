#include "hub/hub_client.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <random>
#include <thread>

#include "base/error.h"
#include "hub/transfer_words.h"

namespace quire {
namespace {

constexpr int kMostTries = 5;  // in a row that brought nothing
constexpr int kMostRedirects = 8;
constexpr double kLongestWait = 300;  // that the hub may ask for
constexpr size_t kLargestText = size_t(32) << 20, kLargestExcuse = 4096;
constexpr int kMostPages = 1000;
constexpr long kTextSeconds = 120;

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool is_done(const HttpReply& reply) {
  return reply.trouble.empty() && (reply.status == 200 || reply.status == 206);
}

// Of troubles with the network or the hub's machines. What the hub refuses, it will refuse again.
bool may_pass(const HttpReply& reply) {
  if (!reply.trouble.empty() && (reply.status == 0 || reply.status == 200 || reply.status == 206))
    return reply.may_pass;
  return reply.status == 408 || reply.status == 429 || reply.status >= 500;
}

std::string why(const HttpReply& reply) {
  if (!reply.trouble.empty()) return reply.trouble;
  if (reply.status == 429) return "the hub says that these are too many requests (429)";
  return fmt::format("the hub answers with status {}", reply.status);
}

// A list or an object, as long as one may be.
struct TextBody : HttpBody {
  std::string text;
  void take(const HttpReply& head, std::span<const std::byte> bytes) override {
    const bool wanted = head.status == 200;
    if (wanted && text.size() + bytes.size() > kLargestText)
      throw Error("the hub sends more than {}, where a list of files should be",
                  bytes_in_words(kLargestText));
    if (!wanted)
      bytes = bytes.first(std::min(bytes.size(), kLargestExcuse - std::min(text.size(), kLargestExcuse)));
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
};

// A file's bytes go to the disk as they come; those of a redirect or a refusal nowhere.
struct FileBody : HttpBody {
  PartialBlob& blob;
  const RepoFile& file;
  const std::function<void()>& on_progress;
  bool begun = false;

  FileBody(PartialBlob& blob, const RepoFile& file, const std::function<void()>& on_progress)
      : blob(blob), file(file), on_progress(on_progress) {}

  void take(const HttpReply& head, std::span<const std::byte> bytes) override {
    if (head.status != 200 && head.status != 206) return;
    if (!begun) begin(head);
    begun = true;
    blob.append(bytes);
    on_progress();
  }
  void begin(const HttpReply& head) {
    if (head.status == 200) {  // all of it, whatever was asked for
      if (blob.size() > 0) blob.start_again();
      return;
    }
    if (first_byte_of(head.header("content-range"), file.bytes) != blob.size())
      throw Error("the hub sends another part of {} than was asked for: '{}'", file.path,
                  printable(head.header("content-range"), 60));
  }
};

std::string unquoted(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

// What the hub says of a file must be what its list said.
void check_head(const HttpReply& reply, const std::string& commit, const RepoFile& file) {
  const std::string etag = unquoted(reply.header("x-linked-etag")), size = reply.header("x-linked-size"),
                    at = reply.header("x-repo-commit");
  if ((!etag.empty() && etag != file.digest) || (!size.empty() && size != std::to_string(file.bytes)) ||
      (!at.empty() && at != commit))
    throw Error("the hub has another {} now than it has in its list; pull again", file.path);
}

}  // namespace

std::optional<uint64_t> first_byte_of(const std::string& content_range, uint64_t file_bytes) {
  if (!content_range.starts_with("bytes ")) return {};
  const char* const end = content_range.data() + content_range.size();
  uint64_t first = 0, last = 0, whole = 0;
  auto [dash, problem] = std::from_chars(content_range.data() + 6, end, first);
  if (problem != std::errc() || dash == end || *dash != '-') return {};
  auto [slash, problem_too] = std::from_chars(dash + 1, end, last);
  if (problem_too != std::errc() || slash == end || *slash != '/' || last < first || last >= file_bytes)
    return {};
  if (std::string_view(slash + 1, end) == "*") return first;
  auto [stop, problem_of_whole] = std::from_chars(slash + 1, end, whole);
  if (problem_of_whole != std::errc() || stop != end || whole != file_bytes) return {};
  return first;
}

std::optional<double> seconds_before(int tries, const std::string& retry_after) {
  double seconds = 0.5 * double(1 << std::min(tries, 6));
  if (!retry_after.empty()) {
    uint32_t said = 0;
    const char* const end = retry_after.data() + retry_after.size();
    const auto [stop, problem] = std::from_chars(retry_after.data(), end, said);
    if (problem == std::errc::result_out_of_range) return {};
    if (problem == std::errc() && stop == end) seconds = said;  // a date is left to our own pauses
  }
  if (seconds > kLongestWait) return {};
  return seconds;
}

HubClient::HubClient(const HubPlaces& places, std::function<void(const std::string&)> on_retry)
    : places_(places), on_retry_(std::move(on_retry)) {}

Url HubClient::address(const std::string& path) const {
  return *parse_url(places_.endpoint + path);
}

HubClient::Found HubClient::follow(HttpRequest request, HttpBody& body) {
  const Url hub = address("/");
  HttpReply first;
  for (int redirects = 0;; ++redirects) {
    // Whoever else the hub sends us to has no business with the token.
    request.token = request.url.same_origin(hub) ? places_.token : "";
    HttpReply reply = http_.get(request, body);
    // What the hub says of the file, it says where it sends us on; the place that has the bytes does not know.
    for (const auto& [name, value] : first.headers) {
      if (name.starts_with("x-")) reply.headers.emplace(name, value);
    }
    if (!is_redirect(reply.status)) return {std::move(reply), request.url};
    if (redirects == kMostRedirects)
      throw Error("the hub sends us on and on: more than {} redirects", kMostRedirects);
    const std::string location = reply.header("location");
    const std::optional<Url> to = redirected(request.url, location);
    if (!to) throw Error("the hub sends us on to where quire does not go: '{}'", printable(location, 100));
    if (request.url.same_origin(hub)) first = std::move(reply);
    request.url = *to;
  }
}

void HubClient::pause(const HttpReply& reply, int tries, const std::string& what) const {
  const std::string problem = why(reply);
  if (tries >= kMostTries) throw Error("cannot fetch {}: {}; tried {} times", what, problem, tries);
  const std::optional<double> seconds = seconds_before(tries - 1, reply.header("retry-after"));
  if (!seconds)
    throw Error("cannot fetch {}: {}, and asks to wait for {} seconds; try again then", what, problem,
                printable(reply.header("retry-after"), 20));
  // Not all at the same time, where many were sent away at once.
  std::minstd_rand random(uint32_t(std::chrono::steady_clock::now().time_since_epoch().count()));
  const double spread = *seconds * (1 + std::uniform_real_distribution<double>(0, 0.25)(random));
  on_retry_(fmt::format("{}: {}; trying again in {:.1f} s", what, problem, spread));
  std::this_thread::sleep_for(std::chrono::duration<double>(spread));
}

void HubClient::refuse(const HubName& name, const HttpReply& reply, const Url& url,
                       const std::string& what) const {
  const std::string code = reply.header("x-error-code");
  const std::string said = printable(reply.header("x-error-message"));
  const std::string words = said.empty() ? "" : fmt::format(" (the hub says: {})", said);
  const std::string page = places_.endpoint + "/" + name.repo;
  if (!reply.trouble.empty()) throw Error("cannot fetch {} from {}: {}", what, url.host, reply.trouble);
  if (code == "GatedRepo")
    throw Error(
        "{} is given only to those who have agreed to its terms: do so at {}, then put a token of yours into "
        "HF_TOKEN{}",
        name.repo, page, words);
  if (reply.status == 401 && !places_.token.empty())
    throw Error(
        "the hub does not take the token of {}: it may have expired or been revoked. Make a new one at "
        "{}/settings/tokens{}",
        places_.token_from, places_.endpoint, words);
  if (reply.status == 401 || code == "RepoNotFound")
    throw Error("there is no model {} on {}, or it is private and HF_TOKEN names nobody who may see it{}",
                name.repo, places_.endpoint, words);
  if (reply.status == 403)
    throw Error("the hub does not let us have {}: look at {}, and at whose token is in HF_TOKEN{}", what,
                page, words);
  if (code == "RevisionNotFound") throw Error("{} has no revision {}{}", name.repo, name.revision, words);
  if (reply.status == 404) throw Error("the hub does not have {}{}", what, words);
  throw Error("cannot fetch {}: {} answers with status {}{}", what, url.host, reply.status, words);
}

std::string HubClient::get_text(const HubName& name, const Url& url, std::string* link) {
  const std::string what = "what the hub knows of " + name.repo;
  for (int tries = 1;; ++tries) {
    TextBody body;
    const Found found =
        follow({.url = url, .token = {}, .first_byte = 0, .whole_seconds = kTextSeconds}, body);
    if (is_done(found.reply) && found.reply.status == 200) {
      if (link) *link = found.reply.header("link");
      return std::move(body.text);
    }
    if (!may_pass(found.reply)) refuse(name, found.reply, found.url, what);
    pause(found.reply, tries, what);
  }
}

std::string HubClient::commit(const HubName& name) {
  const std::string path =
      "/api/models/" + escaped_path(name.repo) + "/revision/" + escaped_part(name.revision);
  const std::string commit = commit_in(get_text(name, address(path), nullptr));
  if (name.is_commit() && commit != name.revision)
    throw Error("the hub has another commit than {}, which was asked for", name.revision);
  return commit;
}

RepoListing HubClient::listing(const HubName& name, const std::string& commit) {
  RepoListing listing;
  Url url = address("/api/models/" + escaped_path(name.repo) + "/tree/" + commit + "?recursive=true");
  for (int pages = 0; pages < kMostPages; ++pages) {
    std::string link;
    add_tree_page(get_text(name, url, &link), listing);
    const std::string next = next_page_in(link);
    if (next.empty()) return listing;
    const std::optional<Url> to = redirected(url, next);
    if (!to || !to->same_origin(url))
      throw Error("the hub's list of files goes on elsewhere: '{}'", printable(next, 100));
    url = *to;
  }
  throw Error("the hub's list of files has more than {} pages", kMostPages);
}

void HubClient::fetch(const HubName& name, const std::string& commit, PartialBlob& blob, const RepoFile& file,
                      const std::function<void()>& on_progress) {
  const Url url =
      address("/" + escaped_path(name.repo) + "/resolve/" + commit + "/" + escaped_path(file.path));
  for (int tries = 1; blob.missing() > 0; ++tries) {
    const uint64_t before = blob.size();
    FileBody body(blob, file, on_progress);
    const Found found = follow({.url = url, .token = {}, .first_byte = before, .whole_seconds = 0}, body);
    check_head(found.reply, commit, file);
    if (blob.missing() == 0) return;
    if (found.reply.status == 416) {  // it is shorter than what is here: so ours is of something else
      blob.start_again();
    } else if (is_done(found.reply)) {
      if (blob.size() <= before)
        throw Error("the hub sends {} of {}, which has {}", bytes_in_words(blob.size()), file.path,
                    bytes_in_words(file.bytes));
      continue;
    } else if (!may_pass(found.reply)) {
      refuse(name, found.reply, found.url, file.path);
    }
    if (blob.size() > before) tries = 1;  // as long as it comes on, it may be cut as often as it likes
    pause(found.reply, tries, file.path);
  }
}

}  // namespace quire
