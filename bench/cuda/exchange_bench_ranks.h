// The ranks of the exchange benchmark, in one process and driven by one thread, and their timing.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "bench/report.h"
#include "bench/timing.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "moe/cuda/dispatchers/exchange.h"

namespace switchyard::bench {

using cuda::Check;
using cuda::DeviceCount;
using cuda::DeviceMemory;
using cuda::Event;
using cuda::Exchange;
using cuda::PinnedMemory;
using cuda::Stream;
using cuda::UseDevice;
using cuda::WaitTimeoutReport;

constexpr int kSamples = 5;

struct Rank {
  explicit Rank(int device_in)
      : device((UseDevice(device_in), device_in)), report(sizeof(WaitTimeoutReport)) {
    *report.as<WaitTimeoutReport>() = {};
    for (int other = 0; other < DeviceCount(); ++other)
      if (other != device && cudaDeviceEnablePeerAccess(other, 0) != cudaSuccess)
        cudaGetLastError();
  }
  int device;
  Stream stream;
  PinnedMemory report;
  DeviceMemory memory, x, ids, weights, outputs, position, y;
  std::unique_ptr<Exchange> exchange;
  std::vector<int32_t> host_ids;
  int64_t tokens = 0;

  void Use() const { UseDevice(device); }
  void BeginDispatch() const {
    exchange->BeginDispatch(
        0,
        {.x = x.data(), .ids = ids.as<int32_t>(), .weights = weights.as<float>(), .tokens = tokens},
        stream.get());
  }
  void EndDispatch() const { exchange->EndDispatch(0, stream.get()); }
  void BeginCombine() const {
    exchange->BeginCombine(0, outputs.data(), position.as<int32_t>(), stream.get());
  }
  void EndCombine() const { exchange->EndCombine(0, y.as<float>(), stream.get()); }
};
using Ranks = std::vector<std::unique_ptr<Rank>>;

inline void Synchronize(const Ranks& ranks) {
  for (const auto& rank : ranks) {
    rank->Use();
    rank->stream.Synchronize();
    if (const auto* report = rank->report.as<WaitTimeoutReport>(); report->failed)
      throw Resource("rank {} timed out waiting for rank {}, stage {}", report->rank, report->peer,
                     report->stage);
  }
}

// Seconds of one call on the slowest rank, the median of samples. `calls` calls are recorded in a
// graph, which all ranks replay at the same time.
inline double Time(const Ranks& ranks, int calls,
                   const std::function<void(const Rank&, int)>& call) {
  std::vector<cudaGraphExec_t> graphs(ranks.size());
  std::vector<Event> starts, stops;
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r]->Use();
    starts.emplace_back();
    stops.emplace_back();
    cudaGraph_t graph = nullptr;
    Check(cudaStreamBeginCapture(ranks[r]->stream.get(), cudaStreamCaptureModeThreadLocal),
          "record");
    for (int i = 0; i < calls; ++i) call(*ranks[r], static_cast<int>(r));
    Check(cudaStreamEndCapture(ranks[r]->stream.get(), &graph), "record");
    Check(cudaGraphInstantiate(&graphs[r], graph, 0), "graph");
    Check(cudaGraphUpload(graphs[r], ranks[r]->stream.get()), "graph");
    cudaGraphDestroy(graph);
  }
  std::vector<double> samples;
  for (int sample = -1; sample < kSamples; ++sample) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      ranks[r]->Use();
      starts[r].Record(ranks[r]->stream.get());
      Check(cudaGraphLaunch(graphs[r], ranks[r]->stream.get()), "replay");
      stops[r].Record(ranks[r]->stream.get());
    }
    Synchronize(ranks);
    double slowest = 0;
    for (size_t r = 0; r < ranks.size(); ++r)
      slowest = std::max(slowest, stops[r].MillisecondsSince(starts[r]) * 1e-3 / calls);
    if (sample >= 0) samples.push_back(slowest);
  }
  for (const cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  return Median(std::move(samples));
}

// Baselines of an exchange (exchange_baselines.cc).
//
// Each rank copies to the next rank, all at the same time. Reports the rates of copy kernels with
// several grid sizes and of the copy engine. Returns the rate of the fastest kernel, in bytes per
// second.
double PlainCopy(const Ranks& ranks, Report& report);
// NCCL's all-to-all of several sizes, if NCCL is installed and each rank has a GPU. `link`: bytes
// per second of a plain copy.
void NcclAllToAll(const Ranks& ranks, double link, Report& report);

}  // namespace switchyard::bench
