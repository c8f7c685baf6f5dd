#include "bench/cuda/gpu_timing.h"

#include <cstdarg>
#include <cstdio>
#include <utility>
#include <vector>

#include "bench/timing.h"
#include "core/cuda/runtime.h"

namespace switchyard::bench {

using cuda::Check;

double GraphSeconds(int calls, const std::function<void(int, cudaStream_t)>& call) {
  constexpr int kWarmUps = 2, kSamples = 7;
  const cuda::Stream stream;
  call(0, stream.get());  // initialises what cannot be initialised during graph capture
  stream.Synchronize();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  Check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "record");
  for (int i = 0; i < calls; ++i) call(i, stream.get());
  Check(cudaStreamEndCapture(stream.get(), &graph), "record");
  Check(cudaGraphInstantiate(&replay, graph, 0), "graph");
  const cuda::Event begin, end;
  std::vector<double> times;
  for (int i = -kWarmUps; i < kSamples; ++i) {
    begin.Record(stream.get());
    Check(cudaGraphLaunch(replay, stream.get()), "replay");
    end.Record(stream.get());
    end.Wait();
    if (i >= 0) times.push_back(end.MillisecondsSince(begin) * 1e-3 / calls);
  }
  stream.Synchronize();
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  return Median(std::move(times));
}

std::string Text(const char* format, ...) {
  char text[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

}  // namespace switchyard::bench
