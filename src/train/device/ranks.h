// The ranks of a run that compute on devices: collectives of device memory.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "comm/device/collectives.h"
#include "comm/mesh.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "profile/profiler.h"
#include "train/device/ops.h"
#include "train/run/layout.h"

namespace switchyard::train {

// The groups of a rank (run/layout.h). Null: the rank is alone in the group. All ranks have the
// same layers and different rows.
struct DeviceGroups {
  // In the memory of the devices.
  Collectives* all = nullptr;
  Collectives* experts = nullptr;        // ranks with different experts
  Collectives* expert_copies = nullptr;  // ranks with the same experts
  // In the memory of the host: all ranks.
  Collectives* host = nullptr;
  // The ranks of `experts`, as ranks of `all`.
  std::vector<int> expert_ranks;
};

// A device may run collectives beside its operations: a collective waits for the operations before
// the last Fork, and operations wait for the collectives before the last Join. JoinMarked waits
// only for those before the last Mark. So memory of a collective may neither be used nor be
// released before Join, or JoinMarked. Owned by the rank; used by the rank's thread only. This
// class is that of a device that runs everything at once, in order.
class DeviceRanks {
 public:
  explicit DeviceRanks(DeviceGroups groups = {}) : groups_(std::move(groups)) {}
  virtual ~DeviceRanks() = default;
  DeviceRanks(const DeviceRanks&) = delete;
  DeviceRanks& operator=(const DeviceRanks&) = delete;

  const DeviceGroups& groups() const { return groups_; }
  virtual void Fork() {}
  virtual void Join() {}
  virtual void Mark() {}
  virtual void JoinMarked() {}

  // From now on, operations and messages are recorded with `profiler`, which outlives its use;
  // null: none. The timer of the operations is another one (Profiler::SetDevice).
  virtual void SetProfiler(profile::Profiler* profiler) { profiler_ = profiler; }
  profile::Profiler* profiler() const { return profiler_; }
  // Records operations on the device, or messages, until the result is destroyed. `layer`: index in
  // the model; kNone: outside of layers. `bytes`: of the message on all ranks of its group.
  static constexpr int kNone = profile::Event::kNone;
  profile::Span Operation(const char* name, int layer = kNone, int64_t rows = kNone) const {
    return {profiler_,
            {.name = name,
             .track = profile::Track::kPass,
             .micro_batch = 0,
             .layer = layer,
             .rows = rows}};
  }
  profile::Span Message(const char* name, int64_t bytes, int layer = kNone) const {
    return {profiler_,
            {.name = name, .track = profile::Track::kMessages, .layer = layer, .bytes = bytes}};
  }

 protected:
  DeviceGroups groups_;

 private:
  profile::Profiler* profiler_ = nullptr;
};

// What a rank computes with.
struct RankOps {
  std::unique_ptr<TrainOps<BF16>> ops;
  std::unique_ptr<DeviceRanks> ranks;  // destroyed first
};

// The groups of `ranks` in the memory of the host, for plain operations. Borrows `ranks`.
std::unique_ptr<DeviceRanks> MakeHostRanks(LayoutRanks& ranks);
// Plain operations of a rank. Borrows the arguments.
RankOps MakePlainRankOps(LayoutRanks& ranks, ThreadPool& pool);

// The mesh of RankComm::In for ranks on devices.
inline MeshShape DeviceMesh(const Layout& layout) { return {.tp = layout.ranks()}; }

}  // namespace switchyard::train
