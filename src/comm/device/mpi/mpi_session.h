// Ranks started by an MPI launcher, each a process of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "comm/host/launcher.h"

namespace switchyard {

// From MPI_Init to MPI_Finalize; one per process, on its main thread. An OpenMPI job does not
// survive the death of a rank: mpirun then terminates all of them.
class MpiSession {
 public:
  static bool Built();  // whether this program was built with MPI
  // Limits of the waits for other ranks during startup.
  struct Options {
    std::chrono::milliseconds timeout{300'000};
    std::function<bool()> give_up;  // polled; must not return false after true; may be empty
    // Called from another thread if MPI_Init waits for too long or `give_up` returns true. It has
    // to end the process, since MPI_Init cannot be interrupted. `why` names the waiting rank, and
    // is empty after `give_up`.
    std::function<void(const std::string& why)> abandon;
  };
  // Loads Open MPI (mpi_library.h). Error kInvalid if built without MPI, if Open MPI is not
  // installed, or if MPI sees another number of processes than the launcher reports.
  static std::unique_ptr<MpiSession> Start(const LaunchedRank& launched, Options options);
  // Calls MPI_Finalize if all ranks exchanged kBye; otherwise the launcher detects the failure.
  ~MpiSession();

  int rank() const;

  // At startup: rank 0 receives the statements of all ranks, in order of rank, and broadcasts its
  // decision. Error kTimeout names the missing rank. Nullopt if give_up returns true.
  using Decide = std::function<std::string(const std::vector<std::string>&)>;
  std::optional<std::string> Agree(const std::string& statement, const Decide& decide);

  // Attaches all other ranks to the arena of this process.
  void Attach(SharedArena& arena);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  explicit MpiSession(std::unique_ptr<Impl> impl);
};

}  // namespace switchyard
