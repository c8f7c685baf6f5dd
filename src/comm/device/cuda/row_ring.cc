#include "comm/device/cuda/row_ring.h"

#include "core/check.h"
#include "core/cuda/runtime.h"

namespace switchyard::cuda {
namespace {

constexpr size_t kAlignment = 256;  // of PeerMemory::Allocate

size_t Stride(size_t place_bytes) {
  return (place_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

RowRing::RowRing(RankComm& comm, size_t place_bytes, int places, std::chrono::milliseconds timeout)
    : memory_(comm, *comm.pp, BytesPerRank(place_bytes, places), timeout),
      stage_(comm.mesh.pp_rank()),
      place_bytes_(Stride(place_bytes)),
      places_(static_cast<size_t>(places)),
      ring_(memory_.Allocate(place_bytes_ * places_)),
      arrived_(memory_.Allocate(sizeof(uint32_t))),
      read_(memory_.Allocate(sizeof(uint32_t))) {
  CHECK_GE(places, 1);
  CHECK_GT(place_bytes, 0u);
  Check(LoadRowRing(), "loading the kernels of hidden rows");
}

size_t RowRing::BytesPerRank(size_t place_bytes, int places) {
  return Stride(place_bytes) * static_cast<size_t>(places) + 2 * kAlignment;
}

size_t RowRing::PlaceOf(uint64_t message) const { return ring_ + message % places_ * place_bytes_; }

// The first messages wait for a negative count, so they do not wait.
void RowRing::Send(std::span<const float> rows, cudaStream_t stream) {
  CHECK_LT(stage_ + 1, memory_.world());
  CHECK_LE(rows.size_bytes(), place_bytes_);
  if (rows.empty()) return;
  const int next = stage_ + 1;
  const WaitLimit limit = memory_.wait_limit();
  auto* const place = reinterpret_cast<float*>(memory_.At(next, PlaceOf(sent_)));
  ++sent_;
  Check(StartAwait(reinterpret_cast<const uint32_t*>(memory_.Local(read_)),
                   static_cast<uint32_t>(sent_ - places_), limit, WaitStage::kStageRoom, next,
                   stream),
        "wait for room for hidden rows");
  Check(StartCopyRows(rows.data(), place, rows.size(), limit, stream), "copy of hidden rows");
  Check(StartRaise(reinterpret_cast<uint32_t*>(memory_.At(next, arrived_)),
                   static_cast<uint32_t>(sent_), limit, stream),
        "announcement of hidden rows");
}

void RowRing::Receive(std::span<float> rows, cudaStream_t stream) {
  CHECK_GT(stage_, 0);
  CHECK_LE(rows.size_bytes(), place_bytes_);
  if (rows.empty()) return;
  const int previous = stage_ - 1;
  const WaitLimit limit = memory_.wait_limit();
  const auto* const place = reinterpret_cast<const float*>(memory_.Local(PlaceOf(received_)));
  ++received_;
  const auto number = static_cast<uint32_t>(received_);
  Check(StartAwait(reinterpret_cast<const uint32_t*>(memory_.Local(arrived_)), number, limit,
                   WaitStage::kStageRows, previous, stream),
        "wait for hidden rows");
  Check(StartCopyRows(place, rows.data(), rows.size(), limit, stream), "copy of hidden rows");
  Check(StartRaise(reinterpret_cast<uint32_t*>(memory_.At(previous, read_)), number, limit, stream),
        "release of the place of hidden rows");
}

}  // namespace switchyard::cuda
