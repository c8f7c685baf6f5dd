// Ranks started by an MPI launcher, each a process of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

// From MPI_Init to MPI_Finalize; one per process, on its main thread. An OpenMPI job does not
// survive the death of a rank: mpirun then terminates all of them.
class MpiSession {
 public:
  static bool Built();  // whether this program was built with MPI
  // Error kInvalid if built without MPI, or if MPI sees another number of processes than `world`,
  // the number that the launcher reports.
  static std::unique_ptr<MpiSession> Start(int world, const std::string& launcher);
  // Calls MPI_Finalize if all ranks exchanged kBye; otherwise the launcher detects the failure.
  ~MpiSession();

  int rank() const;

  // At startup: rank 0 receives the statement of every rank, by rank, and broadcasts its decision.
  // Error kTimeout names the missing ranks.
  using Decide = std::function<std::string(const std::vector<std::string>&)>;
  std::string Agree(const std::string& statement, const Decide& decide,
                    std::chrono::milliseconds timeout);

  // Attaches all other ranks to the arena of this process.
  void Attach(SharedArena& arena);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  explicit MpiSession(std::unique_ptr<Impl> impl);
};

}  // namespace switchyard
