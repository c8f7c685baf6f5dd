// Ranks of other hosts over TCP.
#pragma once

#include <chrono>

#include "comm/device/symmetric_memory.h"
#include "comm/device/tcp/tcp_world.h"
#include "comm/net/tcp.h"

namespace switchyard {

// Connects a rank to those of the other nodes, and attaches them to the arena of its process. All
// ranks do so at once; `listener` is the one whose address stands in `world`. Error kTimeout names
// the ranks that did not answer; a lost connection aborts the arena, naming the rank.
void ConnectTcpRanks(SharedArena& arena, int rank, TcpListener listener, const TcpWorld& world,
                     std::chrono::milliseconds timeout);

}  // namespace switchyard
