#include "moe/backends.h"

#include "moe/dispatchers/deepep.h"
#include "moe/dispatchers/none.h"
#include "moe/runners/grouped_mlp.h"

namespace switchyard {

MoeBackends BuiltinMoeBackends() {
  MoeBackends b;
  b.dispatchers.Add("none", NoneBackend());
  b.dispatchers.Add("deepep", DeepEpBackend());

  const RunnerBackend grouped_mlp = [] { return std::make_unique<GroupedMlpRunner>(); };
  b.runners.Add("auto", grouped_mlp);
  b.runners.Add("grouped_mlp", grouped_mlp);

  b.permutes.Add(DispatchLayout::kStandard, RunnerLayout::kContiguous, SortRowsByExpert());
  b.permutes.Add(DispatchLayout::kNormal, RunnerLayout::kContiguous, SortRowsByExpert());
  b.permutes.Add(DispatchLayout::kLowLatency, RunnerLayout::kContiguous, PackValidRows());
  return b;
}

}  // namespace switchyard
