// Ranks as threads of one process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

using RankBody = std::function<void(int rank, std::shared_ptr<SharedArena>)>;

// Runs body(rank, arenas[rank]) on a thread for each rank and returns when all have finished. If a
// body throws, the arena of its rank is aborted, and the first error is rethrown. A thread releases
// its arena when it ends.
void RunRankThreads(std::vector<std::shared_ptr<SharedArena>> arenas, const RankBody& body);

// For tests: as RunRankThreads, but on simulated nodes of `ranks_per_node` ranks. Ranks of a node
// share memory; ranks of different nodes communicate over TCP on the loopback device.
void RunTcpRankThreads(int world, int ranks_per_node, size_t bytes_per_rank, const RankBody& body);

}  // namespace switchyard
