// Connection protocol between ranks. Internal to comm/device/tcp.
//
// There is one connection for each ordered pair of ranks of different hosts. Only the opener's rank
// thread writes requests to it. A thread of the other rank's process serves it and answers fetches
// on it; the opener waits for these answers before it continues. So no lock is
// needed, and no two ends can block in writes to each other: every request is read by a
// thread that writes nothing but answers, for which the opener waits.
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
