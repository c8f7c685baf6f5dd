#include "moe/dispatchers/masked_ranks.h"

#include <algorithm>
#include <atomic>

#include "core/check.h"
#include "core/error.h"
#include "core/log.h"

namespace switchyard {
namespace {

using std::chrono::milliseconds;

// Interval at which a wait on a flag checks the peer's cell. Two things show in the cell only: that
// other ranks have excluded the peer, and that the peer committed the stage but died before it
// raised the flag.
constexpr milliseconds kPollInterval(10);

double Seconds(milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

size_t MaskedRanks::SymmetricBytes() { return 64; }

MaskedRanks::MaskedRanks(RankComm& comm, milliseconds timeout)
    : memory_(*comm.memory),
      peers_(comm.mesh.EpGroup()),
      rank_(comm.mesh.ep_rank()),
      timeout_(timeout),
      cell_(memory_.Allocate(SymmetricBytes())),
      mask_(peers_.size(), 1) {
  for (const int peer : peers_) CHECK(memory_.Mapped(peer));
}

uint64_t* MaskedRanks::CellOf(int ep_rank) const {
  return reinterpret_cast<uint64_t*>(memory_.At(peers_[ep_rank], cell_));
}

MaskedRanks::Outcome MaskedRanks::OutcomeOf(uint64_t cell, uint64_t number) {
  if ((cell & ~kClosed) >= number) return Outcome::kCommitted;
  return cell & kClosed ? Outcome::kLost : Outcome::kPending;
}

MaskedRanks::Outcome MaskedRanks::ReadCell(int ep_rank, uint64_t number) const {
  return OutcomeOf(std::atomic_ref(*CellOf(ep_rank)).load(), number);
}

MaskedRanks::Outcome MaskedRanks::CloseCell(int ep_rank, uint64_t number) {
  const std::atomic_ref cell(*CellOf(ep_rank));
  uint64_t seen = cell.load();
  while (OutcomeOf(seen, number) == Outcome::kPending)
    if (cell.compare_exchange_strong(seen, seen | kClosed)) return Outcome::kLost;
  return OutcomeOf(seen, number);
}

void MaskedRanks::CheckNotExcluded() const {
  if (std::atomic_ref(*CellOf(rank_)).load() & kClosed)
    throw Error(ErrorKind::kPeer,
                fmt::format("rank {} was excluded by the other ranks after {} stages of the MoE "
                            "exchange: no progress for {:g} s (--elastic-ep-timeout)",
                            peers_[rank_], committed_, Seconds(timeout_)),
                "restart it");
}

uint64_t MaskedRanks::Commit() {
  uint64_t expected = committed_;
  if (!std::atomic_ref(*CellOf(rank_)).compare_exchange_strong(expected, committed_ + 1)) {
    CHECK_EQ(expected, committed_ | kClosed);
    CheckNotExcluded();
  }
  return ++committed_;
}

void MaskedRanks::Wait(int ep_rank, uint64_t number, size_t flag, uint32_t value, Deadline until,
                       const char* what) {
  while (!memory_.WaitFor(flag, value, kPollInterval)) {
    Outcome outcome = ReadCell(ep_rank, number);
    if (outcome == Outcome::kPending && std::chrono::steady_clock::now() >= until)
      outcome = CloseCell(ep_rank, number);
    if (outcome == Outcome::kCommitted) return;
    if (outcome == Outcome::kLost) return Mask(ep_rank, what);
    CheckNotExcluded();
  }
}

void MaskedRanks::Mask(int ep_rank, const char* what) {
  mask_[ep_rank] = 0;
  all_active_ = false;
  LOG_WARNING(
      "rank {} continues without rank {} and its experts: that rank did not end {} in {:g} s; {} "
      "of {} EP ranks are active",
      peers_[rank_], peers_[ep_rank], what, Seconds(timeout_), std::ranges::count(mask_, 1),
      mask_.size());
}

}  // namespace switchyard
