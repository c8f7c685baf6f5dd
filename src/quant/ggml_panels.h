// Panels (panels.h) of ggml's storage types. They hold the stored numbers exactly.
#pragma once

#include <cstdint>

#include "core/gguf.h"
#include "quant/panels.h"

namespace switchyard {

// The panel format of the type: kQ4_0Panels, kQ8_0Panels, kQ4KPanels, kQ5KPanels, kQ6KPanels,
// kIQ4XSPanels or kMxfp4Panels. kF32 for types without panels.
WeightFormat PanelFormatOfGgml(const GgmlType& type);

// Converts columns [begin, min(begin + 128, end)) of a row. `row`: the blocks of the row. `begin`
// is a multiple of 128, or of 32 if blocks have 32 columns.
PanelRow PanelRowOfGgml(const GgmlType& type, const uint8_t* row, int64_t begin, int64_t end);

}  // namespace switchyard
