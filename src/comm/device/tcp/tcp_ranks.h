// Ranks of other hosts over TCP.
//
// There is one connection for each ordered pair of ranks of different hosts. Only the opener's rank
// thread writes requests to it. A thread of the other rank's process serves it and answers fetches
// on it; the opener waits for these answers before it continues. So no lock is
// needed, and no two ends can block in writes to each other: every request is read by a
// thread that writes nothing but answers, for which the opener waits.
#pragma once

#include <chrono>
#include <functional>

#include "comm/device/symmetric_memory.h"
#include "comm/device/tcp/tcp_world.h"
#include "comm/net/tcp.h"

namespace switchyard {

// Connects a rank to those of the other nodes and attaches them to the arena of its process. All
// ranks call it at the same time; `listener` is bound to this rank's address in `world`. Both ends
// of every connection prove the world's token; other connections are refused without ending the
// wait. Returns false if `give_up`, which may be empty and is polled by two threads, returns true.
// Error kTimeout names the ranks that did not connect. A lost connection aborts the arena with the
// name of the rank.
bool ConnectTcpRanks(SharedArena& arena, int rank, TcpListener listener, const TcpWorld& world,
                     std::chrono::milliseconds timeout, const std::function<bool()>& give_up = {});

}  // namespace switchyard
