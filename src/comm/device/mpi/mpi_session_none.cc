// MpiSession for builds without MPI.
#include "comm/device/mpi/mpi_session.h"
#include "core/check.h"
#include "core/error.h"

namespace switchyard {

struct MpiSession::Impl {};

bool MpiSession::Built() { return false; }

std::unique_ptr<MpiSession> MpiSession::Start(const LaunchedRank& launched, Options) {
  throw Error(ErrorKind::kInvalid,
              fmt::format("{} started several ranks, but this program was built without MPI",
                          launched.launcher),
              "pass --dist-init-addr HOST:PORT to run without MPI");
}

MpiSession::MpiSession(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MpiSession::~MpiSession() = default;

// The members are never called, because Start returns no session.
int MpiSession::rank() const { CHECK(false); }
std::optional<std::string> MpiSession::Agree(const std::string&, const Decide&) { CHECK(false); }
void MpiSession::Attach(SharedArena&) { CHECK(false); }

}  // namespace switchyard
