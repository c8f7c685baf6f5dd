#include <fmt/format.h>
#include <pthread.h>

#include <exception>
#include <mutex>
#include <thread>

#include "comm/device/communicator.h"
#include "comm/device/staged_rounds.h"

namespace switchyard {

size_t RankComm::BytesPerRank(const MeshShape& shape) {
  const Mesh mesh(shape, 0);
  size_t bytes = 0;
  for (const int size : {mesh.tp(), mesh.ep(), mesh.moe_tp()}) {
    if (size > 1) bytes += StagedRounds::BytesPerRank(size, Communicator::kStagingBytes);
  }
  return bytes;
}

std::unique_ptr<RankComm> RankComm::Create(std::shared_ptr<SharedArena> arena,
                                           const MeshShape& shape, int rank,
                                           SymmetricMemory::Options options) {
  auto comm = std::make_unique<RankComm>();
  comm->mesh = Mesh(shape, rank);
  comm->memory = std::make_unique<SymmetricMemory>(std::move(arena), rank, options);
  comm->tp = std::make_unique<Communicator>(*comm->memory, comm->mesh.TpGroup(), "tp");
  comm->ep = std::make_unique<Communicator>(*comm->memory, comm->mesh.EpGroup(), "ep");
  comm->moe_tp = std::make_unique<Communicator>(*comm->memory, comm->mesh.MoeTpGroup(), "moe-tp");
  return comm;
}

void RunRankThreads(int world, size_t bytes_per_rank,
                    const std::function<void(int rank, std::shared_ptr<SharedArena>)>& body) {
  const std::shared_ptr<SharedArena> arena = SharedArena::Create(world, bytes_per_rank);
  std::mutex mutex;
  std::exception_ptr first;
  // The cause is kept before the others are stopped: what they throw then comes later.
  const auto fail = [&](int rank, const char* what) {
    {
      const std::lock_guard lock(mutex);
      if (first == nullptr) first = std::current_exception();
    }
    arena->Abort(fmt::format("rank {} failed: {}", rank, what));
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
      try {
        body(rank, arena);
      } catch (const std::exception& error) {
        fail(rank, error.what());
      } catch (...) {
        fail(rank, "unknown error");
      }
    });
  }
  threads.clear();  // joins
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace switchyard
