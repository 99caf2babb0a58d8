#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "openai/openai_request.h"
#include "server/key_quota.h"
#include "server/request_steps.h"
#include "server/viewer.h"

namespace quire {

// A request as it was asked.
struct RequestEntry {
  std::string id;  // several answers to one prompt have the same
  AskKind kind = AskKind::chat;
  uint32_t choice = 0;
  std::string client;
  uint32_t max_tokens = 0;
  Clock::time_point submitted;
  std::vector<TokenId> prompt;
  CacheSalt salt = {};
};
using Rivals = std::vector<std::vector<TokenLogprob>>;  // by token of an answer, if they were asked for

struct FinishedRequest {
  SequenceId sequence;
  std::shared_ptr<const RequestEntry> entry;
  std::shared_ptr<const Answer> answer;
  Rivals rivals;
  Clock::time_point ended;
};

// All requests that are known at one moment, as plain data: it may leave the engine's thread.
struct BookView {
  struct Live {
    std::shared_ptr<const RequestEntry> entry;
    SequenceFigures figures;
  };
  Clock::time_point start;  // of the server's clock
  std::vector<Live> live;
  std::vector<std::shared_ptr<const FinishedRequest>> finished;  // the newest first

  double moment(Clock::time_point time) const { return milliseconds_between(start, time); }
};

// Which request a sequence belongs to or did, the same way.
struct BookNames {
  Clock::time_point start;
  std::map<SequenceId, std::shared_ptr<const RequestEntry>> entries;

  double moment(Clock::time_point time) const { return milliseconds_between(start, time); }
  const RequestEntry* entry_of(SequenceId sequence) const;  // null: it is not known
};

// One request with its answer so far, the same way.
struct RequestCopy {
  std::shared_ptr<const RequestEntry> entry;
  double submitted_ms = 0;  // on the server's clock
  std::shared_ptr<const Answer> answer;
  std::vector<double> token_ms;  // since it came
  Rivals rivals;

  RequestRecord record() const {
    return {entry->salt, submitted_ms, entry->prompt, *answer, token_ms, rivals};
  }
};

// Who asked for what, and how it went: the requests that live and the last that ended. What it hands out is copied or never
// changes: JSON is made of it elsewhere. Engine thread only.
class RequestBook {
 public:
  static constexpr size_t kKept = 64, kKeptInAll = 1024;  // that ended: of a key, and of all

  explicit RequestBook(Clock::time_point start, KeyQuota quota = {}) : start_(start), quota_(quota) {}

  std::shared_ptr<const RequestEntry> add(SequenceId sequence, RequestEntry entry);
  // A token of a request's answer has come.
  void note(const std::string& id, uint32_t choice, const TokenEvent& event);
  // If it throws nothing has changed.
  void finish(SequenceId sequence, std::shared_ptr<const Answer> answer, Clock::time_point now);
  void forget(SequenceId sequence) { live_.erase(sequence); }  // it was cancelled

  // One that is known, alive or ended, if the viewer may see it: of another's it learns no more than of one that never was.
  std::shared_ptr<const RequestEntry> find(const std::string& id, uint32_t choice,
                                           const Viewer& viewer) const;
  // The sequence of a request that lives; nothing if there is none.
  std::optional<SequenceId> find_live(const std::string& id, uint32_t choice) const;
  // All tokens of one that ended, prompt and answer.
  std::optional<std::vector<TokenId>> find_finished(const std::string& id, uint32_t choice) const;
  // What is known of a request that find() gives.
  std::optional<RequestCopy> copy(const Engine& engine, const std::string& id, uint32_t choice,
                                  const Viewer& viewer) const;

  BookView view(const Engine& engine) const;
  BookNames names() const;

 private:
  struct Live {
    std::shared_ptr<const RequestEntry> entry;
    Rivals rivals;
  };

  // Of a key that has more than it may.
  void forget_oldest(const std::string& owner);

  Clock::time_point start_;
  KeyQuota quota_;
  std::map<SequenceId, Live> live_;
  std::deque<std::shared_ptr<const FinishedRequest>> finished_;  // the newest first
};

// Those that the viewer may see, the newest first. Of those that ended a while ago the moments of their tokens are left out.
// Any thread.
OrderedJson book_json(const BookView& book, const Viewer& viewer, Clock::time_point now);

}  // namespace quire
