#include "comm/device/mpi/mpi_session.h"

#include <fmt/format.h>
#include <mpi.h>

#include "comm/device/mpi/mpi_ranks.h"
#include "comm/device/mpi/mpi_wait.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

using mpi::Limit;
using std::chrono::milliseconds;

std::string WaitForText(int source, mpi::Tag tag, const Limit& limit, int rank,
                        milliseconds timeout) {
  for (mpi::PollBackoff patience;; patience.Wait()) {
    if (const auto message = mpi::Poll(source, tag)) {
      return {reinterpret_cast<const char*>(message->bytes.data()), message->bytes.size()};
    }
    if (limit.Over()) {
      throw Error(ErrorKind::kTimeout,
                  fmt::format("rank {} waited {:g} s for rank {} at startup", rank,
                              std::chrono::duration<double>(timeout).count(), source));
    }
  }
}

}  // namespace

struct MpiSession::Impl {
  int rank = 0, world = 1;
  std::shared_ptr<MpiFinalizeState> finalize_state = std::make_shared<MpiFinalizeState>();
};

bool MpiSession::Built() { return true; }

std::unique_ptr<MpiSession> MpiSession::Start(int world, const std::string& launcher) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  auto impl = std::make_unique<Impl>();
  MPI_Comm_rank(MPI_COMM_WORLD, &impl->rank);
  MPI_Comm_size(MPI_COMM_WORLD, &impl->world);
  if (impl->world != world) {
    throw Error(
        ErrorKind::kInvalid,
        fmt::format("{} started {} processes, but MPI sees {}", launcher, world, impl->world),
        "with Slurm: srun --mpi=pmix; or pass --dist-init-addr HOST:PORT to run without "
        "MPI");
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw Invalid("this MPI library does not support MPI_THREAD_MULTIPLE");
  }
  return std::unique_ptr<MpiSession>(new MpiSession(std::move(impl)));
}

MpiSession::MpiSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MpiSession::~MpiSession() {
  if (impl_->finalize_state->complete) MPI_Finalize();
}

int MpiSession::rank() const { return impl_->rank; }

std::string MpiSession::Agree(const std::string& statement, const Decide& decide,
                              milliseconds timeout) {
  const Limit limit = Limit::After(timeout, [] { return false; });
  const auto size = static_cast<int>(statement.size());
  if (impl_->rank != 0) {
    MPI_Request request;
    MPI_Isend(statement.data(), size, MPI_BYTE, 0, mpi::kStatement, MPI_COMM_WORLD, &request);
    std::string decision = WaitForText(0, mpi::kDecision, limit, impl_->rank, timeout);
    CHECK(mpi::Finish({&request, 1}, limit));  // rank 0 has received it, since it decided
    return decision;
  }
  std::vector<std::string> statements{statement};
  for (int rank = 1; rank < impl_->world; ++rank) {
    statements.push_back(WaitForText(rank, mpi::kStatement, limit, 0, timeout));
  }
  std::string decision = decide(statements);
  std::vector<MPI_Request> requests(static_cast<size_t>(impl_->world - 1));
  for (int rank = 1; rank < impl_->world; ++rank) {
    MPI_Isend(decision.data(), static_cast<int>(decision.size()), MPI_BYTE, rank, mpi::kDecision,
              MPI_COMM_WORLD, &requests[rank - 1]);
  }
  if (!mpi::Finish(requests, limit)) {
    throw Error(ErrorKind::kTimeout, "rank 0 could not send its decision to the other ranks");
  }
  return decision;
}

void MpiSession::Attach(SharedArena& arena) {
  CHECK_EQ(arena.world(), impl_->world);
  AttachMpiRanks(arena, impl_->rank, impl_->finalize_state);
}

}  // namespace switchyard
