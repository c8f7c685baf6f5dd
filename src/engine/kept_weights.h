// What a rank keeps from one epoch to the next: weights and caches of the target and the draft
// model.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/device/symmetric_memory.h"
#include "engine/config.h"
#include "engine/kept_gpu_memory.h"
#include "engine/kept_model.h"
#include "model/weights/common_weights.h"

namespace switchyard {

// Weights that are loaded already; null: those that are not.
struct LoadedWeights {
  std::shared_ptr<const ModelWeights> model, draft;
};

// Owned by the rank's loop. Used by the rank's thread.
struct KeptWeights {
  KeptModel model, draft;
  // On a GPU: the target's weights and cache; null: they end with the epoch.
  std::unique_ptr<KeptGpuMemory> gpu;
  // Of a process that was a spare: what all ranks hold equally, until its own weights are loaded.
  std::unique_ptr<const CommonWeights> common_model, common_draft;

  // The weights of the present epoch, in which rank `rank` of the layout is active. Loads experts
  // that the rank does not have in this layout, and counts each in `arena` (CountLoadStep).
  // `active`: the ranks of the layout; empty if all ranks are active. Throws Error kPeer if the
  // arena is aborted.
  LoadedWeights ForEpoch(const EngineConfig& config, const EnginePlan& plan, int rank,
                         const std::vector<int>& active, SharedArena& arena);
  // Loads the weights of the draft model, if the plan has one, unless there are any. Counts the
  // steps in `arena` (SharedArena::CountLoadStep).
  void LoadDraft(const EngineConfig& config, const EnginePlan& plan, int rank, SharedArena& arena);
  // Loads what all ranks hold equally, before the rank of this process is known, and maps the pages
  // of weights that are used as stored. Calls `count_step` for each step, on the calling thread.
  void LoadCommon(const EngineConfig& config, const EnginePlan& plan,
                  const std::function<void()>& count_step);
  // Whether the rank can take part in another epoch.
  bool can_continue() const { return model.has_weights() || (gpu && gpu->Usable()); }
  bool has_common() const { return common_model != nullptr; }
  // Loads the weights of a rank without other ranks, unless there are any, and frees what
  // LoadCommon has loaded and the rank does not need. Counts the steps in `arena`
  // (SharedArena::CountLoadStep).
  void LoadAbsent(const EngineConfig& config, const EnginePlan& plan, int rank, SharedArena& arena);
};

}  // namespace switchyard
