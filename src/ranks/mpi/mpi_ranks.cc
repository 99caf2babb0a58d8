#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include <mpi.h>
#include <sys/prctl.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/late_library.h"
#include "ranks/open_ranks.h"

namespace quire {
namespace {

constexpr int kMessageTag = 1;
constexpr auto kEager = std::chrono::microseconds(100);
constexpr auto kShortestNap = std::chrono::microseconds(20);
constexpr auto kLongestNap = std::chrono::microseconds(500);
constexpr unsigned long kTimerSlackNs = 1000;  // else every nap is 50 microseconds longer

// Between two questions whether something has come. MPI's own waiting asks without end: where others want the core, among them the
// rank that is waited for, a gather then takes as long as the system lets each of them have it.
class Waiting {
 public:
  void pause() {
    const Clock::duration waited = Clock::now() - begin_;
    if (waited < kEager) return;
    if (!std::exchange(is_exact_, true)) ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);  // of this thread
    std::this_thread::sleep_for(std::clamp<Clock::duration>(waited / 8, kShortestNap, kLongestNap));
  }

 private:
  const Clock::time_point begin_ = Clock::now();
  static thread_local bool is_exact_;
};
thread_local bool Waiting::is_exact_ = false;

// Open MPI, opened when there are ranks: a program that runs alone neither loads nor needs it.
struct MpiLibrary {
  LateLibrary file{"libmpi.so.40",
                   "mpirun's processes speak through it; install Open MPI (apt-get install openmpi-bin)"};
  decltype(::MPI_Init_thread)* init = file.function<decltype(::MPI_Init_thread)>("MPI_Init_thread");
  decltype(::MPI_Finalize)* finalize = file.function<decltype(::MPI_Finalize)>("MPI_Finalize");
  decltype(::MPI_Abort)* abort = file.function<decltype(::MPI_Abort)>("MPI_Abort");
  decltype(::MPI_Comm_rank)* rank = file.function<decltype(::MPI_Comm_rank)>("MPI_Comm_rank");
  decltype(::MPI_Comm_size)* size = file.function<decltype(::MPI_Comm_size)>("MPI_Comm_size");
  decltype(::MPI_Send)* send = file.function<decltype(::MPI_Send)>("MPI_Send");
  decltype(::MPI_Recv)* receive = file.function<decltype(::MPI_Recv)>("MPI_Recv");
  decltype(::MPI_Iprobe)* probe = file.function<decltype(::MPI_Iprobe)>("MPI_Iprobe");
  decltype(::MPI_Get_count)* count_of = file.function<decltype(::MPI_Get_count)>("MPI_Get_count");
  decltype(::MPI_Iallgatherv)* all_gather = file.function<decltype(::MPI_Iallgatherv)>("MPI_Iallgatherv");
  decltype(::MPI_Igatherv)* gather = file.function<decltype(::MPI_Igatherv)>("MPI_Igatherv");
  decltype(::MPI_Test)* test = file.function<decltype(::MPI_Test)>("MPI_Test");
  // What mpi.h's MPI_COMM_WORLD and MPI_BYTE are the addresses of.
  MPI_Comm world = file.function<ompi_communicator_t>("ompi_mpi_comm_world");
  MPI_Datatype byte = file.function<ompi_datatype_t>("ompi_mpi_byte");
};

// An error of MPI's own ends all processes, with its words: that is what it does unless it is told otherwise.
class MpiRanks : public Ranks {
 public:
  MpiRanks() {
    int given = MPI_THREAD_SINGLE, rank = 0, count = 0;
    // One thread at a time, but not always the same: the engine has its own.
    mpi_.init(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given);
    mpi_.rank(mpi_.world, &rank);
    mpi_.size(mpi_.world, &count);
    rank_ = uint32_t(rank);
    count_ = uint32_t(count);
    if (given < MPI_THREAD_SERIALIZED) give_up("this MPI cannot be called by more than one thread");
    if (rank_ == 0) return;
    // Rank 0 says when it is over: it may have answers to finish.
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
  }
  ~MpiRanks() override {
    if (rank_ == 0) send({});
    mpi_.finalize();
  }

  uint32_t rank() const override { return rank_; }
  uint32_t count() const override { return count_; }

  std::vector<std::byte> hear() override {
    CHECK(rank_ > 0);
    MPI_Status status;
    int is_there = 0, bytes = 0;
    Waiting waiting;
    while (true) {
      mpi_.probe(0, kMessageTag, mpi_.world, &is_there, &status);
      if (is_there != 0) break;
      waiting.pause();
    }
    mpi_.count_of(&status, mpi_.byte, &bytes);
    std::vector<std::byte> message(static_cast<size_t>(bytes));
    mpi_.receive(message.data(), bytes, mpi_.byte, 0, kMessageTag, mpi_.world, &status);
    return message;
  }

  void give_up(const std::string& why) override {
    std::fprintf(stderr, "quire: rank %u of %u: %s\n", rank_, count_, why.c_str());
    std::fflush(stderr);
    mpi_.abort(mpi_.world, 1);
    std::abort();
  }

 protected:
  void send(std::span<const std::byte> message) override {
    CHECK(message.size() <= INT_MAX);
    for (uint32_t r = 1; r < count_; ++r)
      mpi_.send(message.data(), int(message.size()), mpi_.byte, int(r), kMessageTag, mpi_.world);
  }

  void exchange(std::span<std::byte> all, std::span<const size_t> pieces, To to) override {
    CHECK(all.size() <= INT_MAX);
    counts_.clear();
    begins_.clear();
    size_t at = 0;
    for (const size_t piece : pieces) {
      counts_.push_back(int(piece));
      begins_.push_back(int(at));
      at += piece;
    }
    CHECK(at == all.size());
    MPI_Request request;
    if (to == To::all) {
      mpi_.all_gather(MPI_IN_PLACE, 0, mpi_.byte, all.data(), counts_.data(), begins_.data(), mpi_.byte,
                      mpi_.world, &request);
    } else if (rank_ == 0) {
      mpi_.gather(MPI_IN_PLACE, 0, mpi_.byte, all.data(), counts_.data(), begins_.data(), mpi_.byte, 0,
                  mpi_.world, &request);
    } else {
      mpi_.gather(all.data() + begins_[rank_], counts_[rank_], mpi_.byte, nullptr, nullptr, nullptr,
                  mpi_.byte, 0, mpi_.world, &request);
    }
    Waiting waiting;
    for (int is_done = 0; true; waiting.pause()) {
      mpi_.test(&request, &is_done, MPI_STATUS_IGNORE);
      if (is_done != 0) break;
    }
  }

 private:
  MpiLibrary mpi_;
  uint32_t rank_ = 0, count_ = 1;
  std::vector<int> counts_, begins_;  // of what is exchanged
};

}  // namespace

std::shared_ptr<Ranks> join_ranks() {
  if (started_ranks() == 1) return nullptr;
  return std::make_shared<MpiRanks>();
}

}  // namespace quire
