#include "cluster/socket_address.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

TEST(SocketAddress, KnowsWhichAddressesOnlyThisMachineReaches) {
  for (const char* address : {"tcp://127.0.0.1:5557", "tcp://127.9.9.9:0", "tcp://localhost:*",
                              "tcp://[::1]:5557", "ipc:///run/quire/events"})
    EXPECT_EQ(reach_of(address), Reach::this_machine) << address;
  for (const char* address :
       {"tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://192.168.1.4:5557", "tcp://[::]:5557", "tcp://eth0:1",
        "tcp://127.0.0.1.example.org:5557", "tcp://localhost.example.org:5557", "tcp://lo:5557",
        "tcp://127.1:5557", "tcp://eth0;127.0.0.1:5557"})
    EXPECT_EQ(reach_of(address), Reach::others) << address;
}

TEST(SocketAddress, RefusesWhatIsNone) {
  for (const char* address :
       {"", "5557", "127.0.0.1:5557", "tcp://", "tcp://:5557", "tcp://127.0.0.1",
        "tcp://127.0.0.1:", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:-1", "tcp://127.0.0.1:80x", "ipc://",
        "udp://127.0.0.1:1", "inproc://events", "tcp://127.0.0.1 :1", "tcp://127.0.0.1:1\n"})
    EXPECT_THROW(reach_of(address), Error) << address;
}

}  // namespace
}  // namespace quire
