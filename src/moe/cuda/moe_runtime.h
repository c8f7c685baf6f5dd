// State shared by the MoE layers of one rank on its GPU.
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

// Buffers of the expert GEMMs, for a chunk of rows.
struct ProductBuffers {
  DeviceMemory a, a_scales;            // [rows, H] input of the first GEMM
  DeviceMemory gate_up;                // [rows, 2 I] its output
  DeviceMemory middle, middle_scales;  // [rows, I] the activated rows
};

// Workspace of the current batch. Device memory, sized for the largest batch when layers are built:
// a pass allocates nothing.
struct MoeBuffers {
  DeviceMemory logits;           // [round, num_experts]
  DeviceMemory logical, ids;     // [round, top_k]
  DeviceMemory weights;          // [round, top_k]
  DeviceMemory gathered;         // [lane, H] if a lane's tokens are not contiguous
  DeviceMemory lane_sums;        // [lane, H] partial sums of slices, for reduce-scatter
  DeviceMemory all_x, all_sums;  // [tokens of all ranks, H] if `none` gathers them
  DeviceMemory all_ids, all_local, all_weights;  // [tokens of all ranks, top_k]
  DeviceMemory position;                         // RowOrder, maximum rows
  DeviceMemory offsets, counts, block_groups, order_scratch;
  DeviceMemory order_arrived;          // of SelectAndOrder
  ProductBuffers products;             // of a chunk of rows; shared expert included
  ProductBuffers beside;               // of a shared expert on its own stream
  DeviceMemory outputs;                // [ordered rows, H]
  DeviceMemory shared_y, shared_gate;  // shared expert, own tokens
};

// One per model and rank. Layers borrow it; it borrows device, collectives and peer memory. Used by
// the rank's thread only.
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
  PdlStream chain() const { return device_.chain(); }
  const ExpertMap& experts() const { return experts_; }
  int local_experts() const { return experts_.LocalExperts(mesh().ep_rank()); }
  // Format to which rows and outputs are rounded, exchanged or not.
  RowFormat row_format() const { return exchange_shape_.row_format; }

  // Whether each rank has tokens of its own. Otherwise every rank has all tokens and adds a partial
  // sum.
  bool scatters() const { return scatters_; }
  // Whether ranks gather the tokens of all ranks for their experts (`none` with DP attention).
  bool gathers() const { return scatters_ && options_.a2a_backend == "none"; }
  bool splits_mixed_batches() const { return low_latency_ && normal_; }
  // The exchange for a batch whose longest lane has `longest_lane` tokens; null: no exchange.
  RowExchange* ExchangeFor(bool decode, int64_t longest_lane) const;
  // Maximum tokens of one rank in a round of `exchange`.
  int64_t RoundTokens(const RowExchange* exchange) const;

  // Rows per chunk, the unit that one run of the GEMMs processes.
  int64_t chunk_rows() const { return chunk_rows_; }
  // Grow the buffers for a layer.
  void ReserveExperts(const DeviceExperts& experts);
  void ReserveShared(const DeviceExperts& shared);
  MoeBuffers& buffers() { return buffers_; }

  // The branch on which the shared expert overlaps the other stages, for up to
  // kMaxTokensOnSideStream tokens of a rank; null: no overlap.
  const Branch* SideStreamFor(int64_t own_tokens) const;

 private:
  std::unique_ptr<RowExchange> MakeExchange(bool low_latency, int64_t tokens) const;
  void ReserveRows();
  void ReserveProducts(const DeviceExperts& experts, int64_t rows, ProductBuffers* buffers) const;

  const DeviceMoeContext context_;
  CudaDevice& device_;
  const MoeOptions options_;  // row_dtype is the device's
  const MoeShape shape_;
  const ExchangeShape exchange_shape_;
  const ExpertMap experts_;
  const bool scatters_;
  std::vector<int> ep_group_;
  int64_t normal_tokens_ = 0, low_latency_tokens_ = 0;  // per round
  std::unique_ptr<RowExchange> normal_, low_latency_;
  int64_t ordered_rows_ = 0, chunk_rows_ = 0;  // maximum
  MoeBuffers buffers_;
  Branch beside_;
};

}  // namespace switchyard::cuda
