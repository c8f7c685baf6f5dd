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
#include <string>
#include <string_view>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "comm/net/tcp.h"

namespace switchyard {

// Listening addresses of the ranks of several hosts.

// Created by node 0 at the rendezvous, the same on every rank. Plain value.
struct TcpWorld {
  std::string token;                // key of the connections between the engine's ranks
  int ranks_per_node = 1;           // rank r is on node r / ranks_per_node
  std::vector<HostPort> listeners;  // [world]

  int NodeOf(int rank) const { return rank / ranks_per_node; }
  std::string Describe(int rank) const;  // "rank 2 (node 1, 10.0.0.2)"

  static std::string NewToken();  // 32 random bytes
  std::string Encode() const;
  static TcpWorld Decode(std::string_view bytes);  // Error kInvalid if malformed
};

// Connects a rank to those of the other nodes and attaches them to the arena of its process. All
// ranks call it at the same time; `listener` is bound to this rank's address in `world`. Both ends
// of every connection prove that they have the world's token; other connections are refused without
// ending the wait. Returns false if `give_up` returns true. `give_up` may be empty; two threads
// poll it. Error kTimeout names the ranks that did not connect. A lost connection aborts the arena
// with the name of the rank.
bool ConnectTcpRanks(SharedArena& arena, int rank, TcpListener listener, const TcpWorld& world,
                     std::chrono::milliseconds timeout, const std::function<bool()>& give_up = {});

}  // namespace switchyard
