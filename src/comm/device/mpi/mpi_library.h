// Open MPI, loaded at run time. Internal to comm/device/mpi.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the obsolete C++ binding has code of its own in the header

#include <mpi.h>

#include <atomic>
#include <memory>
#include <string>

#include "comm/device/symmetric_memory.h"

namespace switchyard::mpi {

// Functions and predefined objects of libmpi.so.40. So the program neither needs nor loads Open MPI
// unless a launcher started it as a rank over MPI. Types and constants are those of the header of
// Open MPI; versions 3 to 5 have the same ABI. Immutable once loaded; any thread may use it.
struct Library {
  // Loads the library at the first call, once per process; it stays loaded. If it is not found or
  // is incomplete, `missing` states why, and all pointers are null.
  static const Library& Get();

  std::string missing;

  decltype(&MPI_Init_thread) Init_thread = nullptr;
  decltype(&MPI_Finalize) Finalize = nullptr;
  decltype(&MPI_Comm_rank) Comm_rank = nullptr;
  decltype(&MPI_Comm_size) Comm_size = nullptr;
  decltype(&MPI_Isend) Isend = nullptr;
  decltype(&MPI_Irecv) Irecv = nullptr;
  decltype(&MPI_Improbe) Improbe = nullptr;
  decltype(&MPI_Imrecv) Imrecv = nullptr;
  decltype(&MPI_Get_count) Get_count = nullptr;
  decltype(&MPI_Test) Test = nullptr;
  decltype(&MPI_Testall) Testall = nullptr;
  decltype(&MPI_Type_create_hindexed) Type_create_hindexed = nullptr;
  decltype(&MPI_Type_commit) Type_commit = nullptr;
  decltype(&MPI_Type_free) Type_free = nullptr;

  // MPI_COMM_WORLD, MPI_BYTE, MPI_DATATYPE_NULL and MPI_REQUEST_NULL: addresses of objects in the
  // library.
  MPI_Comm comm_world = nullptr;
  MPI_Datatype byte = nullptr, datatype_null = nullptr;
  MPI_Request request_null = nullptr;
};

// The loaded library. Call only after Library::Get() had nothing missing.
inline const Library& Mpi() { return Library::Get(); }

}  // namespace switchyard::mpi

namespace switchyard {

// Ranks of other processes over MPI. Internal to comm/device/mpi.

// Whether all ranks have exchanged kBye, so that all may call MPI_Finalize.
struct MpiFinalizeState {
  std::atomic<bool> complete{false};
};

// Makes all ranks but `rank` remote ranks of the arena. Requires MPI_THREAD_MULTIPLE.
void AttachMpiRanks(SharedArena& arena, int rank, std::shared_ptr<MpiFinalizeState> finalize_state);

}  // namespace switchyard
