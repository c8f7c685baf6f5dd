// Ranks of other hosts over TCP.
//
// There is one connection for each ordered pair of ranks of different hosts. Only the opener's rank
// thread writes requests to the connection. A thread of the other rank's process reads the requests
// and writes answers to fetches. The opener waits for each answer before it continues. So no lock
// is needed. The two ends cannot block in writes to each other, because the reading thread writes
// only answers that the opener waits for.
#pragma once

#include <chrono>
#include <functional>

#include "comm/device/symmetric_memory.h"
#include "comm/device/tcp/tcp_world.h"
#include "comm/net/tcp.h"

namespace switchyard {

// Connects a rank to those of the other nodes and attaches them to the arena of its process. All
// ranks call it at the same time; `listener` is bound to this rank's address in `world`. Both ends
// of every connection prove that they have the world's token; other connections are refused without
// ending the wait. Returns false if `give_up` returns true. `give_up` may be empty; two threads
// poll it. Error kTimeout names the ranks that did not connect. A lost connection aborts the arena
// with the name of the rank.
bool ConnectTcpRanks(SharedArena& arena, int rank, TcpListener listener, const TcpWorld& world,
                     std::chrono::milliseconds timeout, const std::function<bool()>& give_up = {});

}  // namespace switchyard
