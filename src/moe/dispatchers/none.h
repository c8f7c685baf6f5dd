// `--moe-a2a-backend none`: collectives only.
#pragma once

#include "moe/backends.h"

namespace switchyard {

// Every rank computes its experts for every token and sums their outputs; sums are added up by
// rank, not by slot, so that on several ranks results equal those of the all-to-all backends within
// rounding (on one they are the same bits, for rows are rounded all the same).
//   One attention group: all ranks have all tokens already. Nothing is gathered, and the layer's
//   all-reduce adds the ranks' sums.
//   DP attention: an all-gather of rows and routing, a reduce-scatter of the sums.
DispatcherBackend NoneBackend();

}  // namespace switchyard
