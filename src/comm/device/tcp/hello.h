// What the connections between ranks carry. Internal to comm/device/tcp.
//
// There is one connection for each ordered pair of ranks of different hosts. Its opener's rank
// thread is the only one that writes requests to it; a thread of the other rank's process serves
// it, and answers fetches on it, which the opener waits for before it goes on. So no lock is
// needed, and no two ends ever wait for each other to read: whoever is written to is served by a
// thread that never writes anything but an answer that is being waited for.
#pragma once

#include <array>
#include <cstdint>

namespace switchyard::tcp {

inline constexpr uint64_t kMagic = 0x31'50'43'54'44'52'41'59;  // "YARDTCP1": protocol and version

// The first bytes of a connection.
struct Hello {
  uint64_t magic = kMagic;
  std::array<char, 16> token{};
  int32_t from = 0, to = 0;  // world ranks
};

}  // namespace switchyard::tcp
