// How products on CPUs are cut: rows and columns that belong together, which path takes how many
// rows, how far ahead memory is asked for. Constants alone, with their reasons; none of them
// changes a bit of a result.
#pragma once

#include <cstdint>

namespace switchyard::kernels::cpu {

// Int8 panels of AVX-512 (avx512/int8_panels.h): outputs of a panel. With K 2048 it is 128 KiB, an
// eighth to a half of an L2 cache, beside as much of the next panel that is on its way from memory.
constexpr int64_t kInt8PanelCols = 64;
// Fewer rows of x multiply weights where they lie: packing 1 KiB of weights takes as long as about
// five rows' products with them, and saves a fifth of every product's time (sums are not added
// across lanes).
constexpr int64_t kInt8PanelFewestRows = 24;

}  // namespace switchyard::kernels::cpu
