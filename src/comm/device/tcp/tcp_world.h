// Listening addresses of the ranks of several hosts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/net/tcp.h"

namespace switchyard {

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

}  // namespace switchyard
