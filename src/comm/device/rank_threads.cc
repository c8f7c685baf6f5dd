#include "comm/device/rank_threads.h"

#include <pthread.h>
#include <unistd.h>

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/device/communicator.h"
#include "comm/device/tcp/tcp_ranks.h"
#include "core/check.h"

namespace switchyard {
namespace {

constexpr std::chrono::milliseconds kConnectTimeout(60'000);

}  // namespace

void RunRankThreads(std::vector<std::shared_ptr<SharedArena>> arenas, const RankBody& body) {
  std::mutex mutex;
  std::exception_ptr first;
  // Records the cause before it aborts the other ranks, so that their errors come later.
  const auto fail = [&](int rank, SharedArena& arena, const char* what) {
    {
      const std::lock_guard lock(mutex);
      if (first == nullptr) first = std::current_exception();
    }
    arena.Abort(fmt::format("rank {} failed: {}", rank, what));
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < static_cast<int>(arenas.size()); ++rank) {
    threads.emplace_back([&, rank, arena = std::move(arenas[rank])]() mutable {
      pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
      try {
        body(rank, arena);
      } catch (const std::exception& error) {
        fail(rank, *arena, error.what());
      } catch (...) {
        fail(rank, *arena, "unknown error");
      }
      arena.reset();
    });
  }
  threads.clear();  // joins all threads
  if (first != nullptr) std::rethrow_exception(first);
}

void RunRankThreads(int world, size_t bytes_per_rank, const RankBody& body) {
  RunRankThreads(
      std::vector(static_cast<size_t>(world), SharedArena::Create(world, bytes_per_rank)), body);
}

void RunTcpRankThreads(int world, int ranks_per_node, size_t bytes_per_rank, const RankBody& body) {
  CHECK_EQ(world % ranks_per_node, 0);
  TcpWorld tcp{.token = TcpWorld::NewToken(), .ranks_per_node = ranks_per_node};
  std::vector<TcpListener> listeners;
  std::vector<std::shared_ptr<SharedArena>> arenas;
  std::shared_ptr<SharedArena> node;
  for (int rank = 0; rank < world; ++rank) {
    listeners.push_back(TcpListener::Bind({"127.0.0.1", 0}));
    tcp.listeners.push_back(listeners.back().address());
    if (rank % ranks_per_node == 0) node = SharedArena::Create(world, bytes_per_rank);
    arenas.push_back(SharedArena::FromFd(dup(node->fd())));  // own mapping, as in a rank process
  }
  RunRankThreads(std::move(arenas), [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    ConnectTcpRanks(*arena, rank, std::move(listeners[rank]), tcp, kConnectTimeout);
    body(rank, arena);
  });
}

}  // namespace switchyard
