// Packs matrices of a checkpoint into panels (quant/panels.h) while they are loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/weights/checkpoint_reader.h"
#include "model/weights/prefault.h"
#include "model/weights/shard.h"
#include "quant/weight_view.h"

namespace switchyard {

// Writes rows `rows` of the view to `panels`, which holds the whole view. Runs on any thread, and
// may throw Error.
using PackPanelRows = std::function<void(Range rows, uint8_t* panels)>;

// Gives `view`, whose format and sizes are set, its own memory, which `pack` fills in Finish.
// `stored`: the bytes in mapped files that `pack` reads. Their pages leave the process when the
// view is packed, so that the packed copy is the only one. Without data to read, returns `view` as
// it is; its data must not be null then.
WeightView PackLater(CheckpointReader& in, WeightView view, std::vector<MappedRange> stored,
                     PackPanelRows pack);

}  // namespace switchyard
