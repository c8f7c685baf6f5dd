#include "moe/backends.h"

#include "moe/dispatchers/deepep.h"
#include "moe/dispatchers/flashinfer.h"
#include "moe/dispatchers/fused_tiles.h"
#include "moe/dispatchers/mooncake.h"
#include "moe/dispatchers/none.h"
#include "moe/runners/grouped_mlp.h"
#include "moe/runners/masked_mlp.h"

namespace switchyard {

MoeBackends BuiltinMoeBackends() {
  MoeBackends b;
  b.dispatchers.Add("none", NoneBackend());
  b.dispatchers.Add("deepep", DeepEpBackend());
  b.dispatchers.Add("flashinfer", FlashInferBackend());
  b.dispatchers.Add("mooncake", MooncakeBackend());
  b.fused.Add("fused", FusedTilesBackend());

  b.runners.Add("grouped_mlp", {.make = [] { return std::make_unique<GroupedMlpRunner>(); },
                                .summary = "one contiguous grouped GEMM over exact counts"});
  b.runners.Add("masked_mlp", {.make = [] { return std::make_unique<MaskedMlpRunner>(); },
                               .summary = "one masked GEMM per expert over a fixed capacity"});

  b.permutes.Add(DispatchLayout::kStandard, RunnerLayout::kContiguous, SortRowsByExpert());
  b.permutes.Add(DispatchLayout::kNormal, RunnerLayout::kContiguous, SortRowsByExpert());
  b.permutes.Add(DispatchLayout::kLowLatency, RunnerLayout::kContiguous, CompactPlaces());
  b.permutes.Add(DispatchLayout::kStandard, RunnerLayout::kMasked, GroupRowsMasked());
  b.permutes.Add(DispatchLayout::kNormal, RunnerLayout::kMasked, GroupRowsMasked());
  b.permutes.Add(DispatchLayout::kLowLatency, RunnerLayout::kMasked, CompactPlacesMasked());

  b.gpus = BuiltinGpuBackends();
  return b;
}

}  // namespace switchyard
