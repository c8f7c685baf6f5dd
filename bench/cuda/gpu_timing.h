// The time of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace switchyard::bench {

// Seconds of one call on the current GPU: the median over replays of a graph of `calls` calls each,
// so that the host's part is not in it, after two to warm up. call(i, stream) enqueues the i-th.
// What it reads should be elsewhere for each i, and together larger than the L2 cache, where the
// cache must not help. Error kResource for what the GPU refuses.
double GraphSeconds(int calls, const std::function<void(int, cudaStream_t)>& call);

// snprintf; for device sources, which do not include fmt.
std::string Text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace switchyard::bench
