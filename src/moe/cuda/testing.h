// Test helpers for MoE layers on GPUs.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/device.h"
#include "moe/cuda_moe.h"
#include "moe/layer.h"
#include "moe/test_layer.h"

namespace switchyard::cuda {

#define SKIP_WITHOUT_GPU() \
  if (DeviceCount() == 0) GTEST_SKIP() << "no GPU"

template <typename T>
DeviceMemory ToDevice(const std::vector<T>& values) {
  DeviceMemory memory(values.size() * sizeof(T));
  CopyToDevice(memory.data(), values.data(), values.size() * sizeof(T), "copy to the GPU");
  return memory;
}
template <typename T>
std::vector<T> ToHost(const DeviceMemory& memory, int64_t count) {
  std::vector<T> values(count);
  Check(cudaMemcpy(values.data(), memory.data(), count * sizeof(T), cudaMemcpyDeviceToHost),
        "copy from the GPU");
  return values;
}

// Features that a test disables on its device.
struct Without {
  bool fused = false, packs_experts = false;
};
inline std::unique_ptr<kernels::Device> TestDevice(DType dtype, int64_t max_tokens, int index = 0,
                                                   Without without = {}) {
  return kernels::MakeCudaDevice({.index = index,
                                  .dtype = dtype,
                                  .max_tokens = max_tokens,
                                  .max_sequences = 1,
                                  .max_pages = 1,
                                  .fused = !without.fused,
                                  .packs_experts = !without.packs_experts});
}

// A group of which only this member contributes: the contributions of all others would be zeros.
class SingleMember : public Collectives {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void AllReduceSum(float*, size_t) override {}
  void AllGatherV(const void*, void*, std::span<const size_t>) override { FAIL(); }
  void ReduceScatterV(const float*, float*, std::span<const size_t>) override { FAIL(); }
};

// Runs one pass on a rank that is the only one of its attention group. Input and output are in host
// memory, also the router's rows, if it has any (MoeTokens::router_rows). `before_pass` is called
// when the input is on the GPU. Ranks that share a GPU meet there: an allocation would wait for
// kernels of the others, which may wait for this rank.
inline std::vector<float> ForwardOnce(const MoeLayer& moe, MoeState& state, kernels::Device& device,
                                      const std::vector<float>& hidden, int64_t tokens,
                                      int64_t decoding = 0,
                                      const std::function<void()>& before_pass = {},
                                      const std::vector<float>& router_rows = {}) {
  const std::vector<int64_t> counts = {tokens}, decode = {decoding};
  std::vector<float> out(hidden.size(), NAN);
  const auto x = device.Allocate(hidden.size() * sizeof(float) + 16);
  const auto y = device.Allocate(hidden.size() * sizeof(float) + 16);
  device.CopyIn(x.get(), hidden.data(), hidden.size() * sizeof(float));
  device.CopyIn(y.get(), out.data(), out.size() * sizeof(float));
  const auto router = device.Allocate(router_rows.size() * sizeof(float) + 16);
  device.CopyIn(router.get(), router_rows.data(), router_rows.size() * sizeof(float));
  MoeTokens rows = {counts, decode};
  if (!router_rows.empty()) rows.router_rows = static_cast<const float*>(router.get());
  device.Synchronize();
  if (before_pass) before_pass();
  moe.Forward(state, static_cast<const float*>(x.get()), rows, static_cast<float*>(y.get()));
  device.CopyOut(out.data(), y.get(), out.size() * sizeof(float));
  return out;
}

// Number of tokens that is not a multiple of any tile size. Tests run a pass of this size first. If
// it wrote beyond a buffer, later passes would show it.
constexpr int64_t kMaxTokens = 401;

// A layer on one GPU that holds every expert.
struct OnGpu {
  OnGpu(const TestLayer& layer, DType dtype, MoeOptions options = {},
        int64_t max_tokens = kMaxTokens, Without without = {}, RoutingObserver* observer = nullptr,
        ReplicaChooser* chooser = nullptr, std::shared_ptr<const MoeBackends> backends = nullptr)
      : device(TestDevice(dtype, max_tokens, 0, without)) {
    DeviceMoeContext context;
    context.device = device.get();
    context.backends = std::move(backends);
    backend = MakeCudaMoe(options, layer.Shape(max_tokens), context);
    backend->Observe(observer);
    backend->ChooseReplicasBy(chooser);
    moe = std::make_unique<MoeLayer>(layer.config, layer.ShareOf(Mesh(), true), backend);
    state = moe->MakeState();
  }
  std::vector<float> Forward(const TestLayer& layer, int64_t tokens, uint32_t seed = 7) {
    const std::vector<float> hidden = layer.Hidden(tokens, seed);
    return ForwardOnce(*moe, *state, *device, hidden, tokens, 0, {}, layer.RouterRows(hidden));
  }

  std::unique_ptr<kernels::Device> device;
  std::shared_ptr<MoeBackend> backend;
  std::unique_ptr<MoeLayer> moe;
  std::unique_ptr<MoeState> state;
};

}  // namespace switchyard::cuda
