#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "openai/openai_request.h"
#include "server/request_steps.h"
#include "server/viewer.h"

namespace quire {

// Who asked for what, and how it went: the requests that live and the last that ended. Engine thread only.
class RequestBook {
 public:
  explicit RequestBook(Clock::time_point start) : start_(start) {}

  struct Entry {
    std::string id;  // of the request; several answers to one prompt have the same
    AskKind kind = AskKind::chat;
    uint32_t choice = 0;
    std::string client;
    uint32_t max_tokens = 0;
    Clock::time_point submitted;
    std::vector<TokenId> prompt;
    CacheSalt salt = {};
    std::vector<std::vector<TokenLogprob>> rivals = {};  // by token of the answer, if they were asked for
  };
  void add(SequenceId sequence, Entry entry);
  // A token of a request's answer has come.
  void note(const std::string& id, uint32_t choice, const TokenEvent& event);
  void finish(SequenceId sequence, const Answer& answer, Clock::time_point now);
  void forget(SequenceId sequence) { live_.erase(sequence); }  // it was cancelled

  // One that is known, alive or ended, if the viewer may see it: of another's it learns no more than of one that never was.
  // Valid until the next step.
  const Entry* find(const std::string& id, uint32_t choice, const Viewer& viewer) const;
  // The sequence of a request that lives; nothing if there is none.
  std::optional<SequenceId> find_live(const std::string& id, uint32_t choice) const;
  // All tokens of one that ended, prompt and answer.
  std::optional<std::vector<TokenId>> find_finished(const std::string& id, uint32_t choice) const;
  // What is known of a request that find() gives. Valid until the next step.
  std::optional<RequestRecord> record(const Engine& engine, const std::string& id, uint32_t choice,
                                      const Viewer& viewer) const;
  // The request that a sequence belongs to; null if it is not known. Valid until the next step.
  const Entry* entry_of(SequenceId sequence) const;

  // Those that the viewer may see, the newest first. Of those that ended a while ago the moments of their tokens are left out.
  OrderedJson report(const Engine& engine, const Viewer& viewer, Clock::time_point now) const;
  double moment(Clock::time_point time) const { return milliseconds_between(start_, time); }

 private:
  struct Finished {
    SequenceId sequence;
    Entry entry;
    Answer answer;
    Clock::time_point ended;
  };
  static constexpr size_t kKept = 64;
  static constexpr std::chrono::seconds kTokensShown{60};

  OrderedJson head_json(const Entry& entry, const Answer& answer) const;
  OrderedJson live_json(const Entry& entry, const Sequence& sequence) const;
  OrderedJson finished_json(const Finished& finished, bool with_tokens) const;

  Clock::time_point start_;
  std::map<SequenceId, Entry> live_;
  std::deque<Finished> finished_;  // the newest first
};

}  // namespace quire
