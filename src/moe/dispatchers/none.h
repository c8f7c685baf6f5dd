// `--moe-a2a-backend none`: collectives only.
#pragma once

#include "moe/backends.h"

namespace switchyard {

// Every rank computes its experts for every token and sums their outputs. Sums are then reduced
// over ranks, so the reduction order is not that of slots. On several ranks, results therefore
// equal those of the all-to-all backends within rounding. On one rank they are bit-identical, since
// rows are rounded in the same way.
//   One attention group: all ranks have all tokens. No gather is needed, and the layer's all-reduce
//   sums the partial results.
//   DP attention: an all-gather of rows and routing, then a reduce-scatter of the sums.
DispatcherBackend NoneBackend();

}  // namespace switchyard
