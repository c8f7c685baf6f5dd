// Ranks of other processes over MPI. Internal to comm/device/mpi.
#pragma once

#include <atomic>
#include <memory>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

// Whether all ranks have said goodbye to each other, so that MPI may be left together.
struct MpiFarewell {
  std::atomic<bool> complete{false};
};

// All ranks but `rank` become remote ranks of the arena. MPI is initialised for several threads.
void AttachMpiRanks(SharedArena& arena, int rank, std::shared_ptr<MpiFarewell> farewell);

}  // namespace switchyard
