// The MoE backend of a rank on its GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/device/cuda_device.h"
#include "moe/backend.h"
#include "moe/backends.h"
#include "moe/cuda/dispatchers/row_exchange.h"
#include "moe/cuda/permute/expert_rows.h"
#include "moe/cuda/router/host_choice.h"
#include "moe/cuda/router/router_logits.h"
#include "moe/cuda/router/routing_log.h"
#include "moe/cuda/router/select_experts.h"
#include "moe/cuda/runners/expert_stream.h"
#include "moe/cuda/runners/expert_weights.h"
#include "moe/cuda/runners/gpu_runner.h"
#include "moe/cuda_moe.h"

namespace switchyard::cuda {

class ExpertMover;

// The sizes of ProductBuffers in bytes.
struct ProductBytes {
  int64_t a = 0, a_scales = 0, gate_up = 0, middle = 0, middle_scales = 0;

  void Cover(const ProductBytes& other);  // takes the maximum of each field
  ProductBuffers Allocate() const;
};

// Device memory. It is sized for the largest batch when the state is made, so that a pass allocates
// nothing.
struct MoeBuffers {
  DeviceMemory logits;                  // [round, num_logits]
  DeviceMemory logical, ids;            // [round, top_k]
  DeviceMemory weights;                 // [round, top_k]
  DeviceMemory wide_ids, wide_weights;  // [round, top_k + 1] if the shared expert is dispatched
  DeviceMemory scaled;                  // [round, H] rows times their weights
  DeviceMemory zero_weights;            // [lane] weights of experts without computation
  DeviceMemory gathered;                // [lane, H] if a lane's tokens are not contiguous
  DeviceMemory gathered_router;  // [lane, widest_router_row()] the same, of the router's rows
  DeviceMemory lane_sums;        // [lane, H] partial sums of slices, for reduce-scatter
  DeviceMemory all_x, all_sums;  // [tokens of all ranks, H] if `none` gathers them
  DeviceMemory all_ids, all_local, all_weights;  // [tokens of all ranks, top_k]
  DeviceMemory position;                         // [maximum rows] of RowOrder
  DeviceMemory offsets, counts, block_groups, order_scratch;
  DeviceMemory order_arrived;  // arrival count of SelectAndOrder's blocks
  DeviceMemory group_ids;      // [round, top_k] of the experts that are computed together
  ProductBuffers products;     // for a chunk of rows, or for the shared expert on the same stream
  ProductBuffers shared_products;      // for the shared expert on its own stream
  DeviceMemory outputs;                // [ordered rows, H]
  DeviceMemory shared_y, shared_gate;  // output and gate of the shared expert, for the own tokens
};

struct CudaMoeState : MoeState {
  using MoeState::MoeState;

  RowExchange* exchange = nullptr;  // null: rows are not exchanged
  MoeBuffers buffers;

  // Received rows after dispatch, and the local experts of each row.
  struct Arrived {
    RowSegments in;
    const std::byte* rows = nullptr;
    int64_t row_stride = 0, scale_offset = 0;
    ElementType type = ElementType::kF32;
    // Whether rows were exchanged. If not, they are float32 and not rounded yet.
    bool exchanged = false;
    const int32_t* ids = nullptr;    // [segments · capacity, k] local expert ids
    const float* weights = nullptr;  // [segments · capacity, k]; set if rows were not exchanged
  } arrived;
  RowOrder order;
  // The following fields describe the current round. Route sets them.
  int64_t slots = 0;           // maximum number of top-k slots of this rank's experts
  int64_t expected_slots = 0;  // number of these slots if ranks have even load
  int64_t ordered_rows = 0;    // maximum number of rows in expert order, including padding
  // 1: RunExperts also computes the down projection. Above 1: RunDown computes it, the first chunk
  // in at most this many parts.
  int down_parts = 1;
  bool sends_on_side_stream = false;  // whether sends have their own stream
  GpuGroupedRows grouped;             // the chunk that RunDown computes

  Event sent{cudaEventDisableTiming};  // marks the end of the last sends of an overlapped exchange

  // With experts on CPUs: the number of rows of the pass without padding, on the device, where
  // captured passes read it. `device` uploads it.
  DeviceMemory pass_rows;
  kernels::Device* device = nullptr;

  std::unique_ptr<HostChoice> choice;  // null: no chooser
  std::unique_ptr<RoutingLog> log;     // null: no observer
  void BeginPass(int64_t rows, int64_t first) override {
    const auto count = static_cast<int32_t>(rows);
    if (device) device->CopyIn(pass_rows.data(), &count, sizeof count);
    if (choice) choice->Begin(pass, micro_batch);
    if (log) log->Begin(pass, rows, first);
    clocked = log && log->clocks(pass);
  }
  void EndPass() override {
    if (log) log->Read(clocked);
  }
  void MarkStage(int64_t MoeTimes::*part) override {
    if (clocked) log->MarkStage(part);
  }
  void ReportRouting(uint64_t last) override {
    if (log) log->Report(last);
  }
};

// A layer's weights on the device.
struct CudaMoeParts : MoeLayerParts {
  CudaMoeParts(MoeLayerConfig layer_config, const MoeLayerWeights& weights,
               const class CudaMoeBackend& moe_backend, int layer_index);

  void SetReplicas(std::vector<int32_t> replicas) override;
  void CheckFormats(const kernels::ExpertWeights& expert) const override;
  OwnedExpert Held(int local) const override;
  OwnedExpert Expert(int local) const override;
  bool readable() const override { return !experts.arithmetic.packed; }
  OwnedExpert Stage(OwnedExpert expert) const override;
  std::vector<OwnedExpert> Swap(std::vector<OwnedExpert> replacements) override;
  std::vector<kernels::DeviceArray> Arrays() const override;
  void ReserveStreams(const kernels::ExpertWeights& like) override;
  void KeepForStreams(int32_t logical, const kernels::ExpertWeights& expert) override;
  void PinStreams() override;
  // The groups of streamed experts in a pass.
  int groups() const;
  std::span<const int32_t> Group(int group) const;

  const CudaMoeBackend& backend;
  DeviceMatrix router;
  DeviceMemory router_bias, correction_bias;
  DeviceMemory token_experts;  // [token_rows, top_k] with RouterConfig::by_token
  int64_t token_rows = 0;
  const int index;  // index among the layers of the backend
  // [num_logical] the id to which each logical expert is mapped. It is the physical expert if rows
  // are exchanged, otherwise the local id on this rank. The address is fixed, because captured
  // passes read it.
  DeviceMemory places;
  // [num_logical] the physical expert of each logical one. The address is fixed too.
  DeviceMemory physical_of;
  DeviceExperts experts;
  std::optional<DeviceExperts> shared;
  DeviceMatrix shared_gate;  // [1, H]; empty if there is no gate
  // With MoeOptions::stream_tokens: all experts in host memory, and the members of StreamPlaces.
  PinnedExperts pinned;
  ExpertStream* stream = nullptr;  // of the backend
  std::vector<int32_t> streamed;
  DeviceMemory group_places;

 private:
  void PlaceGroups();
};

inline ExpertActivation ActivationOf(const MoeLayerConfig& config) {
  return {.kind = config.activation, .alpha = config.swiglu_alpha, .limit = config.swiglu_limit};
}

// The parts and the state of this backend.
inline const CudaMoeParts& Own(const MoeLayerParts& parts) {
  return static_cast<const CudaMoeParts&>(parts);
}
inline CudaMoeState& Own(MoeState& state) { return static_cast<CudaMoeState&>(state); }

// The selected exchange, runner and permutes, with the kernels of the other stages. Stages enqueue
// all work on the device's stream, or on a branch that later joins the stream. They allocate no
// memory. They do not block the host, except for EndDispatch over NCCL (nccl_exchange.h). Borrows
// device, collectives and peer memory.
class CudaMoeBackend : public MoeBackend {
 public:
  // Error kInvalid names the flag if a backend is unknown, or if no permute converts the exchange's
  // layout to the runner's.
  CudaMoeBackend(const MoeOptions& options, const MoeShape& shape, const DeviceMoeContext& context,
                 const GpuMoeBackends& backends);
  static size_t PeerBytes(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh,
                          DType dtype, const DeviceMoeHosts& hosts, const GpuMoeBackends& backends);
  ~CudaMoeBackend() override;

  CudaDevice& device() const { return device_; }
  cudaStream_t stream() const { return device_.stream(); }
  PdlStream chain() const { return device_.chain(); }
  const ExpertMap& experts() const { return experts_; }
  int local_experts() const { return experts_.LocalExperts(mesh_.ep_rank()); }
  // Format to which rows and outputs are rounded, also if rows are not exchanged.
  RowFormat row_format() const { return exchange_shape_.row_format; }
  // Whether the shared expert is dispatched (--enable-deepep-waterfill). It is then the last local
  // expert of each rank, and each token has one more slot for it.
  bool shared_dispatched() const { return options_.waterfill && shape_.has_shared; }
  int slots_per_token() const { return exchange_shape_.k; }
  // Number of ranks from which rows arrive (DispatchedRows). Over a HostLink, ranks without tokens
  // have no segment.
  int sources() const { return options_.host_experts ? mesh_.shape().token_ranks() : mesh_.ep(); }
  // Rows per chunk. One run of the GEMMs processes one chunk.
  int64_t chunk_rows() const { return chunk_rows_; }
  // Whether ranks gather the tokens of all ranks for their experts (backend `none` with DP
  // attention).
  bool gathers() const { return scatters_ && !exchange_.make; }
  GpuRunner& runner() const { return *runner_; }
  const GpuPermute& permute() const { return permute_; }

  const RankGroups& groups() const override { return context_.groups; }
  bool scatters() const override { return scatters_; }
  bool splits_mixed_batches() const override { return low_latency_ && normal_; }
  void Observe(RoutingObserver* observer) override { observer_ = observer; }
  void ChooseReplicasBy(ReplicaChooser* chooser) override { chooser_ = chooser; }
  void ReserveMoves(int layers) override;
  ExpertMover& mover() const { return *mover_; }  // after ReserveMoves
  // Whether passes may stream experts (moe/stream_experts.h).
  bool may_stream() const { return options_.stream_tokens > 0; }
  // The buffers of streamed experts, made for the first layer that has an expert to keep.
  ExpertStream& StreamFor(const DeviceExperts& layer, const kernels::ExpertWeights& expert) const;

  // The state is sized for the layers that have been placed so far.
  std::unique_ptr<MoeState> MakeState(int slot) override;
  // Copies the weights to the device; the host weights may be freed when this returns.
  std::unique_ptr<MoeLayerParts> Place(MoeLayerConfig config, MoeLayerWeights weights) override;
  void SelectExchange(int64_t longest, MoeState& state) override;
  float* GatheredRows(MoeState& state) override;
  float* LaneSums(MoeState& state) override;
  float* GatheredRouterRows(MoeState& state) override;

  void Start(const MoeLayerParts& parts, MoeState& state) override;
  void Route(const MoeLayerParts& parts, MoeState& state) override;
  void BeginDispatch(const MoeLayerParts& parts, MoeState& state) override;
  void RunShared(const MoeLayerParts& parts, MoeState& state) override;
  void EndDispatch(const MoeLayerParts& parts, MoeState& state) override;
  // Computes the row order by expert; RunExperts and RunDown permute the rows.
  void PrePermute(const MoeLayerParts& parts, MoeState& state) override;
  void RunExperts(const MoeLayerParts& parts, MoeState& state) override;
  void PostPermute(const MoeLayerParts& parts, MoeState& state) override;
  void BeginCombine(const MoeLayerParts& parts, MoeState& state) override;
  void RunDown(const MoeLayerParts& parts, MoeState& state) override;
  void EndCombine(const MoeLayerParts& parts, MoeState& state) override;
  void AddShared(const MoeLayerParts& parts, MoeState& state, float* own_out) override;

 private:
  void FindPermute(const GpuMoeBackends& backends);
  void MakeExchanges();
  std::unique_ptr<RowExchange> MakeExchange(bool low_latency, int64_t tokens) const;
  int64_t RoundCapacity() const;    // maximum tokens of one rank in a round
  int64_t ArrivedCapacity() const;  // maximum rows that arrive in a round
  // Maximum number of experts whose rows are ordered together.
  int OrderedExperts() const;
  // Computes the experts of this GPU, and then those of each group while the next one is uploaded.
  void RunStreamed(const CudaMoeParts& parts, CudaMoeState& state);
  void AddSharedToSums(const CudaMoeParts& parts, const CudaMoeState& state) const;
  // Adds the outputs of some experts to the sums; `places`: row of CudaMoeParts::group_places.
  void RunGroup(const CudaMoeParts& parts, const DeviceExperts& experts, int places,
                CudaMoeState& state);
  void PlanChunks();
  void ReserveExperts(const DeviceExperts& experts);
  void ReserveShared(const DeviceExperts& shared);
  ProductBytes BytesOf(const DeviceExperts& experts, int64_t rows) const;

  static RouterLogitsParams Logits(const CudaMoeParts& parts, const CudaMoeState& state);
  SelectExpertsParams Choice(const CudaMoeParts& parts, const CudaMoeState& state) const;
  bool FusesSelectAndOrder(const CudaMoeState& state) const;
  // Whether one kernel computes the logits, the selection and the order. Implies
  // FusesSelectAndOrder.
  bool RoutesInOneKernel(const CudaMoeParts& parts, const CudaMoeState& state) const;
  RoutingRecord RecordOf(const CudaMoeParts& parts, const CudaMoeState& state) const;
  RoutingLogShape LogShape() const;
  void StoreRoutedExperts(const CudaMoeState& state) const;
  void ChooseReplicas(const CudaMoeParts& parts, const CudaMoeState& state) const;
  void DispatchShared(const CudaMoeParts& parts, const CudaMoeState& state) const;
  // [tokens of the round, slots_per_token()] the ids and weights that dispatch sends.
  const int32_t* DispatchedIds(const CudaMoeState& state) const;
  const float* DispatchedWeights(const CudaMoeState& state) const;
  // [tokens of the round, H] the rows that the experts receive.
  const float* DispatchedRowsOf(const CudaMoeState& state) const;
  // The chunk that begins at row `first` of the order. Its pointers to row data are not set.
  GpuGroupedRows ChunkAt(const CudaMoeState& state, int64_t first) const;
  GpuGroupedRows PermuteChunk(const CudaMoeParts& parts, const CudaMoeState& state,
                              int64_t first) const;
  std::byte* OutputsOf(const CudaMoeParts& parts, const CudaMoeState& state,
                       const RowChunk& chunk) const;
  void GatherAll(CudaMoeState& state) const;
  // Returns the sizes of all lanes in this round. `size`: bytes or floats per token.
  std::span<const size_t> LaneSizes(CudaMoeState& state, size_t size) const;
  const Branch* SharedBranch(const CudaMoeParts& parts, const CudaMoeState& state) const;
  // Sets the fields of `state` that follow from the round's tokens. Also decides whether sends have
  // their own stream. They have one if they can overlap computation: of another pass or, in
  // single-batch overlap, of the shared expert or of further parts of the down projection.
  // Otherwise a second stream would only cost time.
  void PlanRound(const CudaMoeParts& parts, CudaMoeState& state) const;
  static bool SplitsDown(const CudaMoeState& state) { return state.down_parts > 1; }
  // Returns the stream for sends. Sends begin after all work that was enqueued before this call.
  // Sends that overlap computation have their own stream. MarkSent records their end, and AwaitSent
  // makes later computation wait for it.
  cudaStream_t ForkSends(const CudaMoeState& state) const;
  void MarkSent(const CudaMoeState& state) const;
  void AwaitSent(const CudaMoeState& state) const;
  bool ReducesAfterSums() const;
  bool SumsIncludeShared(const CudaMoeParts& parts, const CudaMoeState& state) const;
  TokenAddend SharedInSums(const CudaMoeParts& parts, const CudaMoeState& state) const;

  const DeviceMoeContext context_;
  CudaDevice& device_;
  const ExchangeShape exchange_shape_;
  const ExpertMap experts_;
  const bool scatters_;
  const std::vector<int> ep_group_;
  const GpuExchangeBackend exchange_;
  const std::unique_ptr<GpuRunner> runner_;
  GpuPermute permute_;
  int64_t normal_tokens_ = 0, low_latency_tokens_ = 0;  // maximum tokens of a rank in a round
  std::unique_ptr<RowExchange> normal_, low_latency_;
  int64_t ordered_rows_ = 0, chunk_rows_ = 0;  // maximum of a round; maximum of a chunk
  // [num_physical] local id on this rank, or −1. Used if rows are not exchanged.
  DeviceMemory local_ids_;
  DeviceMemory owners_;  // [physical] EP rank of each expert, if the shared expert is dispatched
  // Bytes of the buffers that a state needs for the layers placed so far.
  ProductBytes product_bytes_, shared_product_bytes_;
  int64_t output_bytes_ = 0;
  bool has_shared_ = false;
  int64_t spare_bytes_ = 0;  // bytes of spare memory for one moved expert
  std::unique_ptr<ExpertMover> mover_;
  mutable std::unique_ptr<ExpertStream> stream_experts_;  // null: no expert was kept
  std::vector<int> layers_;  // model indices of the layers placed so far
  Branch shared_branch_;
  std::optional<Branch> sends_;  // stream for sends that overlap computation, if any
};

}  // namespace switchyard::cuda
