#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

struct ZmqLibrary;

// The part of ZeroMQ that is wanted here, of a library that is opened when the first context is made.
class ZmqContext {
 public:
  // Throws Error, which says what to install, if there is no libzmq.so.5.
  ZmqContext();
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

 private:
  friend class ZmqSocket;
  std::shared_ptr<const ZmqLibrary> library_;
  void* context_ = nullptr;
};

// Its frames.
using ZmqMessage = std::vector<std::string>;

// A socket at an address. One thread at a time. The context must outlive it.
class ZmqSocket {
 public:
  enum class Kind : uint8_t { publish, router };
  struct Options {
    int most_waiting = 1000;                // messages for each peer that does not take them
    int64_t most_frame_bytes = 1024;        // of what a peer sends: one who sends more is hung up on
    std::chrono::milliseconds linger{200};  // for what was not sent at the end
  };
  ZmqSocket(ZmqContext& context, Kind kind, const Options& options);

  // Throws Error if that cannot be.
  void bind(const std::string& address);
  // Where it is bound, with the port that was found.
  std::string address() const;

  // Without waiting. `gone`: of a router, nobody has the name that is the first frame.
  enum class Sent : uint8_t { yes, full, gone };
  Sent send(std::span<const std::string_view> frames);
  // A message that is there; one of more frames than that is empty. Larger frames than anybody may send do not come.
  static constexpr size_t kMostFrames = 8;
  std::optional<ZmqMessage> receive();

  // Waits until a message is there, but no longer; whether one is.
  bool wait(std::chrono::milliseconds most) const;

 private:
  std::optional<std::string> receive_frame();
  void set(int option, int value, const char* what);
  [[noreturn]] void fail(const std::string& what) const;

  struct Close {
    const ZmqLibrary* library;
    void operator()(void* socket) const;
  };
  std::shared_ptr<const ZmqLibrary> library_;
  std::unique_ptr<void, Close> socket_;
  size_t most_frame_bytes_;
};

}  // namespace quire
