// Ranks of other processes over MPI. Internal to comm/device/mpi.
#pragma once

#include <atomic>
#include <memory>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

// Whether all ranks have exchanged kBye, so that all may call MPI_Finalize.
struct MpiFinalizeState {
  std::atomic<bool> complete{false};
};

// Makes all ranks but `rank` remote ranks of the arena. Requires MPI_THREAD_MULTIPLE.
void AttachMpiRanks(SharedArena& arena, int rank, std::shared_ptr<MpiFinalizeState> finalize_state);

}  // namespace switchyard
