#include "moe/cuda/dispatchers/nccl_exchange.h"

#include <algorithm>
#include <vector>

#include "core/check.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "moe/cuda/dispatchers/exchange_layout.h"
#include "moe/cuda/dispatchers/nccl_exchange_launch.h"
#include "moe/cuda/dispatchers/nccl_exchange_plan.h"
#include "moe/cuda/permute/expert_rows.h"

namespace switchyard::cuda {
namespace {

int64_t Between(int64_t value, int64_t most) { return std::clamp<int64_t>(value, 0, most); }

}  // namespace

struct NcclExchange::Impl {
  struct Slot {
    std::byte* memory = nullptr;
    ExchangeSlotMemory own;
    PinnedMemory counts{sizeof(NcclCounts)};
    Event counted;                       // recorded when the counts have arrived on the host
    ExchangeBatch batch = {};            // arguments of the dispatch into the send buffers
    ExchangeLayout message_layout = {};  // layout of a message to one rank (SingleSourceLayoutOf)
    int64_t longest = 0;
    bool fixed = false;
    const NcclCounts& host_counts() const { return *counts.as<NcclCounts>(); }
  };

  ExchangeConfig config;
  NcclSlotPlan plan;
  NcclGroup& group;
  int blocks;
  DeviceMemory experts;
  DeviceMemory ones;  // [max_tokens, ranks], all 1: the weights of partial sums
  std::vector<Slot> slots;
  std::vector<NcclMessage> sends, receives;  // reused, to avoid allocations

  Impl(const ExchangeConfig& c, const ExpertMap& map, PeerMemory& memory, NcclGroup& group_in)
      : config(c),
        plan(NcclPlanOf(c)),
        group(group_in),
        blocks(c.blocks > 0 ? c.blocks : MultiprocessorCount()),
        experts(PlacesOf(map, c.ranks)),
        slots(c.in_flight) {
    CHECK_EQ(group.size(), c.ranks);
    CHECK_EQ(group.rank(), c.rank);
    config.world_ranks = nullptr;  // owned by the caller
    Check(LoadDispatchKernels(), "kernels of the dispatch");
    if (c.sum_by_rank) {
      const std::vector<float> all(c.max_tokens * c.ranks, 1.0f);
      ones = DeviceMemory(all.size() * sizeof(float));
      CopyToDevice(ones.data(), all.data(), ones.bytes(), "weights");
    }
    const size_t offset = memory.Allocate(PeerBytes(c));
    for (int s = 0; s < c.in_flight; ++s) {
      Slot& slot = slots[s];
      slot.memory = memory.Local(offset) + s * plan.bytes;
      slot.own = SlotMemoryOf(c);
      FillBatch(map.size(), slot);
    }
    group.ConnectPairs();
  }

  // The dispatch kernels store the rows for each destination rank in a buffer of that rank, in the
  // part that belongs to the source rank. Here the destinations are local send buffers.
  // They have only one part, which belongs to source 0.
  void FillBatch(int num_experts, Slot& slot) const {
    ExchangeBatch& b = slot.batch;
    b = BatchOf(config, slot.own, experts, num_experts);
    b.rank = 0;
    for (int r = 0; r < config.ranks; ++r) b.slot[r] = SendBuffer(slot, r);
  }

  Slot& SlotOf(int slot) { return SlotAt(slots, slot); }

  std::byte* SendBuffer(const Slot& slot, int rank) const {
    return slot.memory + plan.send_buffers + rank * plan.send_buffer_bytes;
  }
  std::byte* Metadata(const Slot& slot, int rank) const {
    return slot.memory + plan.metadata + rank * plan.metadata_bytes;
  }
  std::byte* RowsOf(const Slot& slot, int rank) const {
    return slot.memory + plan.rows + rank * config.max_tokens * slot.message_layout.row_stride;
  }
  template <typename T>
  T* At(const Slot& slot, int64_t offset) const {
    return reinterpret_cast<T*>(slot.memory + offset);
  }

  void StartMessages() {
    sends.clear();
    receives.clear();
  }
  void AddRows(const Slot& slot, int rank, int64_t to, int64_t from) {
    sends.push_back({rank, SendBuffer(slot, rank) + slot.message_layout.rows,
                     static_cast<size_t>(to * slot.message_layout.row_stride)});
    receives.push_back(
        {rank, RowsOf(slot, rank), static_cast<size_t>(from * slot.message_layout.row_stride)});
  }

  void Pack(Slot& slot, cudaStream_t stream);
  void SendMetadata(Slot& slot, cudaStream_t stream);
  void SendReturns(Slot& slot, const void* outputs, const int32_t* position, int64_t begin,
                   int64_t most, cudaStream_t stream);
};

size_t NcclExchange::PeerBytes(const ExchangeConfig& config) {
  return static_cast<size_t>(NcclPlanOf(config).bytes) * config.in_flight;
}

NcclExchange::NcclExchange(const ExchangeConfig& config, const ExpertMap& experts,
                           PeerMemory& memory, NcclGroup& group)
    : impl_(std::make_unique<Impl>(config, experts, memory, group)) {}

NcclExchange::~NcclExchange() = default;

// Packs rows and metadata into the send buffers, and assigns each expected return of these tokens
// its place in `returned`.
void NcclExchange::Impl::Pack(Slot& slot, cudaStream_t stream) {
  Check(StartDispatch(slot.batch, config.low_latency ? std::max(1, blocks / 2) : blocks, stream),
        "dispatch");
  Check(StartPlaceReturns(slot.batch,
                          {.segment = slot.fixed ? slot.longest * ReturnsFromRank(config) : -1,
                           .place = At<int32_t>(slot, plan.place),
                           .counts = At<NcclCounts>(slot, plan.counts)},
                          stream),
        "places of returned rows");
}

void NcclExchange::Impl::SendMetadata(Slot& slot, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(MetadataBytes(slot.message_layout));
  StartMessages();
  for (int r = 0; r < config.ranks; ++r) {
    sends.push_back({r, SendBuffer(slot, r) + slot.message_layout.counts, bytes});
    receives.push_back({r, Metadata(slot, r), bytes});
    if (slot.fixed) AddRows(slot, r, slot.longest, slot.longest);
  }
  group.Exchange(sends, receives, stream);

  AcceptParams accept = {.layout = slot.message_layout,
                         .ranks = config.ranks,
                         .max_tokens = static_cast<int>(config.max_tokens),
                         .longest = static_cast<int>(slot.longest),
                         .top_k = config.top_k,
                         .sum_by_rank = config.sum_by_rank,
                         .ids = At<int32_t>(slot, plan.ids),
                         .weights = At<float>(slot, plan.weights),
                         .first_return = At<int32_t>(slot, plan.first_return),
                         .counts = At<NcclCounts>(slot, plan.counts)};
  for (int r = 0; r < config.ranks; ++r) accept.metadata[r] = Metadata(slot, r);
  Check(StartAccept(accept, stream), "metadata of rows");
}

void NcclExchange::BeginDispatch(int slot_number, const Tokens& tokens, cudaStream_t stream) {
  const ExchangeConfig& config = impl_->config;
  const int64_t longest = tokens.longest > 0 ? tokens.longest : config.max_tokens;
  if (tokens.tokens < 0 || tokens.tokens > longest || longest > config.max_tokens)
    throw Resource(
        "exchange: {} tokens of this rank, or {} of the rank with the most, exceed the capacity of "
        "{}",
        tokens.tokens, longest, config.max_tokens);
  Impl::Slot& slot = impl_->SlotOf(slot_number);
  slot.longest = longest;
  slot.fixed = longest <= impl_->plan.fixed_tokens;
  slot.message_layout = SingleSourceLayoutOf(config, longest);
  ExchangeBatch& batch = slot.batch;
  batch.layout = slot.message_layout;
  batch.max_tokens = static_cast<int>(longest);
  SetTokens(batch, tokens);

  impl_->Pack(slot, stream);
  impl_->SendMetadata(slot, stream);
  if (slot.fixed) return;
  Check(cudaMemcpyAsync(slot.counts.as<void>(), slot.memory + impl_->plan.counts,
                        sizeof(NcclCounts), cudaMemcpyDeviceToHost, stream),
        "counts of rows");
  slot.counted.Record(stream);
}

DispatchedRows NcclExchange::EndDispatch(int slot_number, cudaStream_t stream) {
  Impl::Slot& slot = impl_->SlotOf(slot_number);
  if (!slot.fixed) {
    cudaStreamCaptureStatus recording;
    Check(cudaStreamIsCapturing(stream, &recording), "state of the stream");
    // Batches of up to ExchangeConfig::recorded_tokens use fixed mode, so that they can be
    // captured.
    CHECK_EQ(recording, cudaStreamCaptureStatusNone);
    impl_->group.watch().Wait(slot.counted.get());
    impl_->StartMessages();
    const NcclCounts& counts = slot.host_counts();
    for (int r = 0; r < impl_->config.ranks; ++r)
      impl_->AddRows(slot, r, counts.sent[r], counts.received[r]);
    impl_->group.Exchange(impl_->sends, impl_->receives, stream);
  }
  const NcclSlotPlan& plan = impl_->plan;
  return {.rows = slot.memory + plan.rows,
          .row_stride = slot.message_layout.row_stride,
          .scale_offset = slot.message_layout.scale_offset,
          .ids = impl_->At<int32_t>(slot, plan.ids),
          .weights = impl_->config.sum_by_rank ? impl_->At<float>(slot, plan.weights) : nullptr,
          .counts = impl_->At<NcclCounts>(slot, plan.counts)->received};
}

// Sends each rank its returns [begin, begin + most), and receives those of each rank.
void NcclExchange::Impl::SendReturns(Slot& slot, const void* outputs, const int32_t* position,
                                     int64_t begin, int64_t most, cudaStream_t stream) {
  PackReturnsParams pack = {.outputs = outputs,
                            .position = position,
                            .first_return = At<int32_t>(slot, plan.first_return),
                            .weights = At<float>(slot, plan.weights),
                            .counts = At<NcclCounts>(slot, plan.counts),
                            .combined = slot.batch.combined,
                            .sum_by_rank = config.sum_by_rank,
                            .ranks = config.ranks,
                            .max_tokens = static_cast<int>(config.max_tokens),
                            .longest = static_cast<int>(slot.longest),
                            .top_k = config.top_k,
                            .hidden = static_cast<int>(config.hidden),
                            .begin = begin,
                            .most = most};
  for (int r = 0; r < config.ranks; ++r) pack.send_buffer[r] = SendBuffer(slot, r);
  Check(StartPackReturns(pack, blocks, stream), "combine");

  const int64_t bytes = slot.message_layout.combined_bytes;
  StartMessages();
  int64_t place = 0;  // index of rank r's first return
  for (int r = 0; r < config.ranks; ++r) {
    const NcclCounts& counts = slot.host_counts();
    const int64_t to = slot.fixed ? most : Between(counts.returns_to_send[r] - begin, most);
    const int64_t from = slot.fixed ? most : Between(counts.expected[r] - begin, most);
    sends.push_back({r, SendBuffer(slot, r), static_cast<size_t>(to * bytes)});
    receives.push_back({r, slot.memory + plan.returned + (place + begin) * bytes,
                        static_cast<size_t>(from * bytes)});
    place += slot.fixed ? most : counts.expected[r];
  }
  group.Exchange(sends, receives, stream);
}

void NcclExchange::BeginCombine(int slot_number, const void* outputs, const int32_t* position,
                                cudaStream_t stream) {
  Impl::Slot& slot = impl_->SlotOf(slot_number);
  const ExchangeConfig& config = impl_->config;
  if (slot.fixed)
    return impl_->SendReturns(slot, outputs, position, 0, slot.longest * ReturnsFromRank(config),
                              stream);
  const NcclCounts& counts = slot.host_counts();
  int64_t last = 0;
  for (int r = 0; r < config.ranks; ++r)
    last = std::max<int64_t>({last, counts.returns_to_send[r], counts.expected[r]});
  const int64_t most = impl_->plan.send_buffer_bytes / slot.message_layout.combined_bytes;
  for (int64_t begin = 0; begin < last; begin += most)
    impl_->SendReturns(slot, outputs, position, begin, most, stream);
}

void NcclExchange::EndCombine(int slot_number, float* y, cudaStream_t stream) {
  Impl::Slot& slot = impl_->SlotOf(slot_number);
  const ExchangeConfig& config = impl_->config;
  const NcclSlotPlan& plan = impl_->plan;
  // Sums in the same order as Exchange: by rank, or by slot.
  Check(UnpermuteRows(
            {.outputs = slot.memory + plan.returned,
             .type = config.combined == DType::kF32 ? ElementType::kF32 : ElementType::kBF16,
             .position = impl_->At<int32_t>(slot, plan.place),
             .weights = config.sum_by_rank ? impl_->ones.as<float>() : slot.batch.weights,
             .tokens = slot.batch.tokens,
             .hidden = config.hidden,
             .k = static_cast<int>(ReturnsOfToken(config)),
             .addend = slot.batch.addend,
             .y = y},
            stream),
        "end of the combine");
}

}  // namespace switchyard::cuda
