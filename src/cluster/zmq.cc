#include "cluster/zmq.h"

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/late_library.h"

namespace quire {
namespace {

// Of libzmq 4's interface, which has kept them since 2012.
constexpr int kPublish = 1, kRouter = 6;
constexpr int kReceiveMore = 13, kLinger = 17, kMostFrame = 22, kMostToSend = 23, kMostToReceive = 24,
              kLastEndpoint = 32, kRouterMandatory = 33, kIpv6 = 42;
constexpr int kDoNotWait = 1, kMoreFollows = 2;
constexpr short kReadable = 1;

int number_of(ZmqSocket::Kind kind) {
  return kind == ZmqSocket::Kind::publish ? kPublish : kRouter;
}

}  // namespace

// As libzmq has it.
struct ZmqPollItem {
  void* socket;
  int file;
  short events, seen;
};

struct ZmqLibrary {
  LateLibrary file{"libzmq.so.5", "install libzmq5 (apt-get install libzmq5)"};
  void* (*make_context)() = file.function<void*()>("zmq_ctx_new");
  int (*end_context)(void*) = file.function<int(void*)>("zmq_ctx_term");
  void* (*make_socket)(void*, int) = file.function<void*(void*, int)>("zmq_socket");
  int (*close)(void*) = file.function<int(void*)>("zmq_close");
  int (*set)(void*, int, const void*,
             size_t) = file.function<int(void*, int, const void*, size_t)>("zmq_setsockopt");
  int (*get)(void*, int, void*, size_t*) = file.function<int(void*, int, void*, size_t*)>("zmq_getsockopt");
  int (*bind)(void*, const char*) = file.function<int(void*, const char*)>("zmq_bind");
  int (*send)(void*, const void*, size_t,
              int) = file.function<int(void*, const void*, size_t, int)>("zmq_send");
  int (*receive)(void*, void*, size_t, int) = file.function<int(void*, void*, size_t, int)>("zmq_recv");
  int (*poll)(ZmqPollItem*, int, long) = file.function<int(ZmqPollItem*, int, long)>("zmq_poll");
  int (*problem)() = file.function<int()>("zmq_errno");
  const char* (*words)(int) = file.function<const char*(int)>("zmq_strerror");
};

ZmqContext::ZmqContext() : library_(std::make_shared<ZmqLibrary>()), context_(library_->make_context()) {
  if (context_ == nullptr) throw Error("ZeroMQ does not start: {}", library_->words(library_->problem()));
}

ZmqContext::~ZmqContext() {
  while (library_->end_context(context_) != 0 && library_->problem() == EINTR) {
  }
}

ZmqSocket::ZmqSocket(ZmqContext& context, Kind kind, const Options& options)
    : library_(context.library_),
      socket_(library_->make_socket(context.context_, number_of(kind)), Close{library_.get()}),
      most_frame_bytes_(size_t(options.most_frame_bytes)) {
  if (socket_ == nullptr) fail("a ZeroMQ socket cannot be made");
  set(kLinger, int(options.linger.count()), "its patience");
  set(kMostToSend, options.most_waiting, "how many messages may wait");
  set(kMostToReceive, options.most_waiting, "how many messages may wait");
  if (kind == Kind::router) set(kRouterMandatory, 1, "that it says who is gone");
  if (library_->set(socket_.get(), kMostFrame, &options.most_frame_bytes, sizeof(options.most_frame_bytes)) !=
      0)
    fail("a ZeroMQ socket cannot be told how large a message may be");
}

void ZmqSocket::Close::operator()(void* socket) const {
  library->close(socket);
}

void ZmqSocket::fail(const std::string& what) const {
  throw Error("{}: {}", what, library_->words(library_->problem()));
}

void ZmqSocket::set(int option, int value, const char* what) {
  if (library_->set(socket_.get(), option, &value, sizeof(value)) != 0)
    fail(fmt::format("a ZeroMQ socket cannot be told {}", what));
}

void ZmqSocket::bind(const std::string& address) {
  // Only where it is meant: with it 127.0.0.1 has a name that others' sockets do not take.
  if (address.find('[') != std::string::npos) set(kIpv6, 1, "that addresses are of IPv6");
  if (library_->bind(socket_.get(), address.c_str()) != 0) fail(fmt::format("cannot listen at {}", address));
}

std::string ZmqSocket::address() const {
  std::string text(512, '\0');
  size_t bytes = text.size();
  if (library_->get(socket_.get(), kLastEndpoint, text.data(), &bytes) != 0)
    fail("a ZeroMQ socket has no address");
  return text.c_str();  // up to the zero that it ends with
}

ZmqSocket::Sent ZmqSocket::send(std::span<const std::string_view> frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int flags = kDoNotWait | (i + 1 < frames.size() ? kMoreFollows : 0);
    while (library_->send(socket_.get(), frames[i].data(), frames[i].size(), flags) < 0) {
      const int problem = library_->problem();
      if (problem == EINTR) continue;
      // Only the first frame asks whether there is room, and for whom.
      if (i == 0 && problem == EAGAIN) return Sent::full;
      if (i == 0 && problem == EHOSTUNREACH) return Sent::gone;
      fail("a message cannot be sent");
    }
  }
  return Sent::yes;
}

std::optional<std::string> ZmqSocket::receive_frame() {
  std::string frame(most_frame_bytes_, '\0');
  while (true) {
    const int bytes = library_->receive(socket_.get(), frame.data(), frame.size(), kDoNotWait);
    if (bytes < 0 && library_->problem() == EINTR) continue;
    if (bytes < 0 && library_->problem() == EAGAIN) return std::nullopt;
    if (bytes < 0) fail("a message cannot be received");
    frame.resize(std::min(size_t(bytes), frame.size()));
    return frame;
  }
}

std::optional<ZmqMessage> ZmqSocket::receive() {
  ZmqMessage message;
  for (int more = 1; more != 0;) {
    std::optional<std::string> frame = receive_frame();
    if (!frame) return std::nullopt;  // never halfway: a message comes with all its frames
    if (message.size() <= kMostFrames) message.push_back(*std::move(frame));
    size_t size = sizeof(more);
    if (library_->get(socket_.get(), kReceiveMore, &more, &size) != 0) fail("a message cannot be received");
  }
  if (message.size() > kMostFrames) message.clear();
  return message;
}

bool ZmqSocket::wait(std::chrono::milliseconds most) const {
  ZmqPollItem item{.socket = socket_.get(), .file = 0, .events = kReadable, .seen = 0};
  return library_->poll(&item, 1, long(most.count())) > 0;
}

}  // namespace quire
