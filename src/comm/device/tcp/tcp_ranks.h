// Ranks of other hosts over TCP.
#pragma once

#include <chrono>

#include "comm/device/symmetric_memory.h"
#include "comm/device/tcp/tcp_world.h"
#include "comm/net/tcp.h"

namespace switchyard {

// Connects a rank to those of the other nodes and attaches them to the arena of its process. All
// ranks call it at the same time; `listener` is bound to this rank's address in `world`. Error
// kTimeout names the ranks that did not connect. A lost connection aborts the arena with the
// name of the rank.
void ConnectTcpRanks(SharedArena& arena, int rank, TcpListener listener, const TcpWorld& world,
                     std::chrono::milliseconds timeout);

}  // namespace switchyard
