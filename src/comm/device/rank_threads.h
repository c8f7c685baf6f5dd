// Ranks as threads of one process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

using RankBody = std::function<void(int rank, std::shared_ptr<SharedArena>)>;

// Runs body(rank, arenas[rank]) on a thread for each rank and returns when all have finished. If
// one throws, its arena is aborted, and the first error is rethrown. A thread that ends lets go of
// its arena.
void RunRankThreads(std::vector<std::shared_ptr<SharedArena>> arenas, const RankBody& body);

// The same on nodes of `ranks_per_node` ranks, which share memory, while ranks of different nodes
// talk TCP over the loopback device: for tests.
void RunTcpRankThreads(int world, int ranks_per_node, size_t bytes_per_rank, const RankBody& body);

}  // namespace switchyard
