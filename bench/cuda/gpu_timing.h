// The time of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace switchyard::bench {

// Seconds of one call on the current GPU, without the time of the host. It is the median over
// replays of a graph of `calls` calls, after two warm-up replays. call(i, stream) enqueues the i-th
// call.
// To exclude hits in the L2 cache, each i should read other memory, in total more than the L2 cache
// holds. Error kResource on CUDA errors.
double GraphSeconds(int calls, const std::function<void(int, cudaStream_t)>& call);

// snprintf into a string, for device sources, which do not include fmt.
std::string Text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace switchyard::bench
