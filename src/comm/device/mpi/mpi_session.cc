#include "comm/device/mpi/mpi_session.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/device/mpi/mpi_library.h"
#include "comm/device/mpi/mpi_wait.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

using mpi::Limit;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPollInterval(100);  // between two polls of give_up

double Seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

// Calls MPI_Init_thread, and `abandon` if it takes too long. Returns the provided thread level.
int InitWithin(const LaunchedRank& launched, const MpiSession::Options& options) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread guard([&] {
    const auto until = steady_clock::now() + options.timeout;
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kPollInterval, [&] { return done; })) {
      if (options.give_up && options.give_up()) return options.abandon({});
      if (steady_clock::now() < until) continue;
      return options.abandon(fmt::format(
          "rank {} waited {:g} s in MPI_Init for the other {} processes that {} started",
          launched.rank, Seconds(options.timeout), launched.world - 1, launched.launcher));
    }
  });
  int provided = MPI_THREAD_SINGLE;
  mpi::Mpi().Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  {
    const std::lock_guard lock(mutex);
    done = true;
  }
  changed.notify_all();
  guard.join();
  return provided;
}

}  // namespace

struct MpiSession::Impl {
  int rank = 0, world = 1;
  Options options;
  std::shared_ptr<MpiFinalizeState> finalize_state = std::make_shared<MpiFinalizeState>();

  bool stopped() const { return options.give_up && options.give_up(); }
  std::optional<std::string> WaitForText(int source, mpi::Tag tag, const Limit& limit) const;
};

// Receives a text. Returns nullopt if give_up returns true during the wait.
std::optional<std::string> MpiSession::Impl::WaitForText(int source, mpi::Tag tag,
                                                         const Limit& limit) const {
  for (mpi::PollBackoff patience;; patience.Wait()) {
    if (const auto message = mpi::Poll(source, tag, limit)) {
      return std::string(reinterpret_cast<const char*>(message->bytes.data()),
                         message->bytes.size());
    }
    if (limit.stop()) return std::nullopt;
    if (limit.Over()) {
      throw Error(ErrorKind::kTimeout, fmt::format("rank {} waited {:g} s for rank {} at startup",
                                                   rank, Seconds(options.timeout), source));
    }
  }
}

bool MpiSession::Built() { return true; }

std::unique_ptr<MpiSession> MpiSession::Start(const LaunchedRank& launched, Options options) {
  if (const std::string& missing = mpi::Library::Get().missing; !missing.empty()) {
    throw Error(ErrorKind::kInvalid,
                fmt::format("{} started several ranks, but MPI is not available: {}",
                            launched.launcher, missing),
                "install Open MPI (Debian: libopenmpi3), or pass --dist-init-addr HOST:PORT to run "
                "without MPI");
  }
  const int provided = InitWithin(launched, options);
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  mpi::Mpi().Comm_rank(mpi::Mpi().comm_world, &impl->rank);
  mpi::Mpi().Comm_size(mpi::Mpi().comm_world, &impl->world);
  if (impl->world != launched.world) {
    throw Error(ErrorKind::kInvalid,
                fmt::format("{} started {} processes, but MPI sees {}", launched.launcher,
                            launched.world, impl->world),
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
  if (impl_->finalize_state->complete) mpi::Mpi().Finalize();
}

int MpiSession::rank() const { return impl_->rank; }

std::optional<std::string> MpiSession::Agree(const std::string& statement, const Decide& decide) {
  const Limit limit = Limit::After(impl_->options.timeout, [this] { return impl_->stopped(); });
  const auto size = static_cast<int>(statement.size());
  if (impl_->rank != 0) {
    MPI_Request request;
    mpi::Mpi().Isend(statement.data(), size, mpi::Mpi().byte, 0, mpi::kStatement,
                     mpi::Mpi().comm_world, &request);
    auto decision = impl_->WaitForText(0, mpi::kDecision, limit);
    if (!decision) return std::nullopt;
    // Rank 0 decides after it has received all statements, so this send completes immediately.
    CHECK(mpi::Finish({&request, 1}, Limit::After(impl_->options.timeout, [] { return false; })));
    return decision;
  }
  std::vector<std::string> statements{statement};
  for (int rank = 1; rank < impl_->world; ++rank) {
    auto text = impl_->WaitForText(rank, mpi::kStatement, limit);
    if (!text) return std::nullopt;
    statements.push_back(std::move(*text));
  }
  std::string decision = decide(statements);
  std::vector<MPI_Request> requests(static_cast<size_t>(impl_->world - 1));
  for (int rank = 1; rank < impl_->world; ++rank) {
    mpi::Mpi().Isend(decision.data(), static_cast<int>(decision.size()), mpi::Mpi().byte, rank,
                     mpi::kDecision, mpi::Mpi().comm_world, &requests[rank - 1]);
  }
  if (!mpi::Finish(requests, limit)) {
    if (impl_->stopped()) return std::nullopt;
    throw Error(ErrorKind::kTimeout,
                "rank 0 could not send the result of the startup checks to the other ranks");
  }
  return decision;
}

void MpiSession::Attach(SharedArena& arena) {
  CHECK_EQ(arena.world(), impl_->world);
  AttachMpiRanks(arena, impl_->rank, impl_->finalize_state);
}

}  // namespace switchyard
