// Ranks that an MPI launcher started, each a process of its own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/symmetric_memory.h"

namespace switchyard {

// From MPI_Init to MPI_Finalize; one a process, on its main thread. An OpenMPI job does not survive
// the death of a rank: mpirun then ends all of them.
class MpiSession {
 public:
  static bool Built();  // whether this program was built with MPI
  // Error kInvalid where it was not, or where MPI sees another number of processes than `world`,
  // which the launcher says it has started.
  static std::unique_ptr<MpiSession> Start(int world, const std::string& launcher);
  // Leaves MPI in good order where all ranks have said goodbye; otherwise the launcher finds out.
  ~MpiSession();

  int rank() const;

  // At the start: rank 0 gets what every rank states, by rank, and all get what it decides. Error
  // kTimeout names who did not come.
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
