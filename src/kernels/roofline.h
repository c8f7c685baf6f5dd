// The machine's own ceilings, measured, so that every benchmark can say how near it came in the
// same run.
#pragma once

namespace switchyard::kernels {

// Bytes per second that `threads` threads together read from DRAM: each streams its own buffer,
// larger than the caches per core, with software prefetch. Best of a few passes; about half a
// second.
double MeasureReadBandwidth(int threads);

}  // namespace switchyard::kernels
