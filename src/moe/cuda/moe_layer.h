// One MoE layer on one rank's GPU: MoeLayer's stages on device memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "moe/cuda/expert_runner.h"
#include "moe/cuda/expert_weights.h"
#include "moe/cuda/moe_batch.h"
#include "moe/cuda/moe_runtime.h"
#include "moe/cuda/select_experts.h"
#include "moe/device_layer.h"

namespace switchyard::cuda {

// Owns its weights on the device. Enqueues all work on the device's stream, or on a branch that
// joins it again. Never waits on the host; allocates nothing after construction. Used by the rank's
// thread only.
class CudaMoeLayer : public MoeBlock {
 public:
  // Copies the weights to the device. Error kInvalid names the unsupported parameter.
  CudaMoeLayer(MoeLayerConfig config, const MoeLayerWeights& weights, CudaMoeRuntime& runtime);

  void Forward(const float* hidden, const MoeTokens& tokens, float* out) override;
  void CopyRoutedExperts(int64_t tokens, int32_t* to) override;

  // As in MoeLayer. PrePermute computes the row order by expert; RunExperts permutes the rows.
  void Gather(CudaMoeBatch& batch);
  void Route(CudaMoeBatch& batch);
  void BeginDispatch(CudaMoeBatch& batch);
  void EndDispatch(CudaMoeBatch& batch);
  void PrePermute(CudaMoeBatch& batch);
  void RunExperts(CudaMoeBatch& batch);
  void BeginCombine(CudaMoeBatch& batch);
  void EndCombine(CudaMoeBatch& batch);
  void Scatter(CudaMoeBatch& batch);

  // Initializes `batch`, before its first round, for group_tokens[own group] rows of `hidden`.
  void StartBatch(const float* hidden, std::span<const int64_t> group_tokens, bool decode,
                  float* out, CudaMoeBatch* batch);
  CudaMoeBatch& batch() { return batch_; }

 private:
  void RunBatch(CudaMoeBatch& batch);
  void RunRound(CudaMoeBatch& batch);
  void PlaceRouter(const RouterWeights& router);
  void PlaceShared(const MoeLayerWeights& weights);
  void GatherAll(CudaMoeBatch& batch);
  SelectExpertsParams Choice(const CudaMoeBatch& batch) const;
  bool FusesSelectAndOrder(const CudaMoeBatch& batch) const;
  void StoreRoutedExperts(CudaMoeBatch& batch);
  const Branch* SharedBranch(const CudaMoeBatch& batch) const;
  void ComputeShared(CudaMoeBatch& batch);
  bool ReducesAfterSums() const;
  bool SumsIncludeShared(const CudaMoeBatch& batch) const;
  TokenAddend SharedInSums(const CudaMoeBatch& batch) const;
  TokenAddend SharedOutput(int64_t token) const;
  ExpertActivation Activation() const;
  // Size in bytes or floats (`size` per token) of each member's part, for consecutive ranks.
  std::span<const size_t> PartSizes(CudaMoeBatch& batch, int first, int ranks, size_t size) const;
  std::span<const size_t> LaneSizes(CudaMoeBatch& batch, size_t size) const;

  MoeLayerConfig config_;
  CudaMoeRuntime& runtime_;
  DeviceMatrix router_;
  DeviceMemory router_bias_, correction_bias_;
  DeviceMemory places_;          // [num_logical] ids that logical experts map to; or empty
  DeviceMemory local_ids_;       // [num_physical] local id on this rank or −1, for GatherAll
  DeviceMemory routed_experts_;  // [max_tokens, top_k]
  DeviceExperts experts_;
  std::optional<DeviceExperts> shared_;
  DeviceMatrix shared_gate_;  // [1, H]; no data: no gate
  CudaMoeBatch batch_;
};

}  // namespace switchyard::cuda
