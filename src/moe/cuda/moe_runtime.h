// What the MoE layers of one rank share on its GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "moe/backends.h"
#include "moe/cuda/expert_weights.h"
#include "moe/cuda/row_exchange.h"
#include "moe/device_layer.h"

namespace switchyard::cuda {

// What the products of experts work on, of so many rows at a time.
struct ProductBuffers {
  DeviceMemory a, a_scales;            // [rows, H] what the first product reads
  DeviceMemory gate_up;                // [rows, 2 I] what it leaves
  DeviceMemory middle, middle_scales;  // [rows, I] the activated rows
};

// Working memory of the batch under way, device memory sized for the largest one when layers are
// made: a pass allocates nothing.
struct MoeBuffers {
  DeviceMemory logits;           // [round, num_experts]
  DeviceMemory logical, ids;     // [round, top_k]
  DeviceMemory weights;          // [round, top_k]
  DeviceMemory gathered;         // [lane, H] where a lane's tokens do not lie together
  DeviceMemory lane_sums;        // [lane, H] where the sums of slices are added up
  DeviceMemory all_x, all_sums;  // [tokens of all ranks, H] where `none` gathers them
  DeviceMemory all_ids, all_local, all_weights;  // [tokens of all ranks, top_k]
  DeviceMemory position;                         // RowOrder, of the most rows
  DeviceMemory offsets, counts, block_groups, order_scratch;
  DeviceMemory order_arrived;          // ChooseAndOrder's
  ProductBuffers products;             // of a chunk of rows; of the shared expert too
  ProductBuffers beside;               // of a shared expert on a stream of its own
  DeviceMemory outputs;                // [ordered rows, H]
  DeviceMemory shared_y, shared_gate;  // of the shared expert, own tokens
};

// One per model and rank; layers borrow it, and it borrows device, collectives and peer memory.
// Used by the rank's thread only.
class CudaMoeRuntime : public DeviceMoe {
 public:
  CudaMoeRuntime(const MoeOptions& options, const MoeShape& shape, const DeviceMoeContext& context);
  static size_t PeerBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                          DType dtype, const DeviceMoeHosts& hosts);
  std::unique_ptr<MoeBlock> MakeLayer(MoeLayerConfig config,
                                      const MoeLayerWeights& weights) override;

  const MoeOptions& options() const { return options_; }
  const MoeShape& shape() const { return shape_; }
  const Mesh& mesh() const { return context_.mesh; }
  const RankGroups& groups() const { return context_.groups; }
  CudaDevice& device() const { return device_; }
  cudaStream_t stream() const { return device_.stream(); }
  StreamChain chain() const { return device_.chain(); }
  const ExpertMap& experts() const { return experts_; }
  int local_experts() const { return experts_.LocalExperts(mesh().ep_rank()); }
  // What rows are rounded to on the way to experts and back, whether they travel or not.
  RowFormat row_format() const { return exchange_shape_.row_format; }

  // Whether each rank has tokens of its own; else every rank has all and adds its experts' part.
  bool scatters() const { return scatters_; }
  // Whether ranks see all ranks' tokens for the experts (`none` with DP attention).
  bool gathers() const { return scatters_ && options_.a2a_backend == "none"; }
  bool splits_mixed_batches() const { return low_latency_ && normal_; }
  // The exchange for a batch whose longest lane has so many tokens; null: rows do not travel.
  RowExchange* ExchangeFor(bool decode, int64_t longest_lane) const;
  // Most tokens of one rank in a round through it.
  int64_t RoundTokens(const RowExchange* exchange) const;

  // Rows of a chunk that one run of the GEMMs takes.
  int64_t chunk_rows() const { return chunk_rows_; }
  // Size buffers for a layer.
  void ReserveExperts(const DeviceExperts& experts);
  void ReserveShared(const DeviceExperts& shared);
  MoeBuffers& buffers() { return buffers_; }

  // Where the shared expert of so few of a rank's tokens computes beside the stages of the others;
  // null: between them.
  const Branch* BranchFor(int64_t own_tokens) const;

 private:
  std::unique_ptr<RowExchange> MakeExchange(bool low_latency, int64_t tokens) const;
  void ReserveRows();
  void ReserveProducts(const DeviceExperts& experts, int64_t rows, ProductBuffers* buffers) const;

  const DeviceMoeContext context_;
  CudaDevice& device_;
  const MoeOptions options_;  // row_dtype: the device's
  const MoeShape shape_;
  const ExchangeShape exchange_shape_;
  const ExpertMap experts_;
  const bool scatters_;
  std::vector<int> ep_group_;
  int64_t normal_tokens_ = 0, low_latency_tokens_ = 0;  // of a round
  std::unique_ptr<RowExchange> normal_, low_latency_;
  int64_t ordered_rows_ = 0, chunk_rows_ = 0;  // the most
  MoeBuffers buffers_;
  Branch beside_;
};

}  // namespace switchyard::cuda
