#include "model/kv_storage.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/device.h"
#include "model/weights/shard.h"

namespace switchyard {
namespace {

// Bytes of one token's rows in one layer on one rank: (k, v).
std::pair<int64_t, int64_t> RowBytes(const ModelConfig& config, const Mesh& mesh, DType dtype) {
  const AttentionConfig& a = config.attention;
  if (a.kind == AttentionConfig::Kind::kLatent)
    return {kernels::CacheRowBytes(dtype, a.kv_lora_rank + a.qk_rope_head_dim), 0};
  const int64_t bytes = KvHeads(a, mesh).size() * kernels::CacheRowBytes(dtype, a.head_dim);
  return {bytes, bytes};
}

// The number of layers that store keys and values.
int64_t CachedLayers(const ModelConfig& config) {
  return config.num_layers() - std::ranges::count_if(config.layers, &LayerConfig::linear);
}

size_t RoundUpToPage(size_t bytes) {
  constexpr size_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

size_t KvStorage::Bytes(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                        int32_t page_size, DType dtype) {
  const auto slots = static_cast<size_t>(num_pages * page_size);
  const auto [k_bytes, v_bytes] = RowBytes(config, mesh, dtype);
  const size_t layer = RoundUpToPage(slots * static_cast<size_t>(k_bytes)) +
                       RoundUpToPage(slots * static_cast<size_t>(v_bytes));
  return layer * static_cast<size_t>(CachedLayers(config)) +
         (config.has_moe() ? RoundUpToPage(slots * sizeof(int32_t)) : 0);
}

KvStorage::KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                     int32_t page_size, DType dtype, std::span<std::byte> memory)
    : num_pages_(num_pages), page_size_(page_size), dtype_(dtype) {
  CHECK_GE(memory.size(), Bytes(config, mesh, num_pages, page_size, dtype));
  const int64_t slots = num_pages * page_size;
  const auto take = [&](int64_t bytes, DType type) {
    const void* data = memory.data();
    memory = memory.subspan(RoundUpToPage(static_cast<size_t>(slots * bytes)));
    return Tensor::View(data, type, {slots, bytes / static_cast<int64_t>(SizeOf(type))});
  };
  const auto [k_bytes, v_bytes] = RowBytes(config, mesh, dtype);
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const bool cached = !config.layers[layer].linear;
    k_.push_back(cached ? take(k_bytes, dtype) : Tensor());
    v_.push_back(cached && v_bytes ? take(v_bytes, dtype) : Tensor());
  }
  if (config.has_moe()) router_faults_ = take(sizeof(int32_t), DType::kI32);
}

KvStorage::KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                     int32_t page_size, DType dtype)
    : num_pages_(num_pages), page_size_(page_size), dtype_(dtype) {
  const auto size = static_cast<int64_t>(SizeOf(dtype));
  const auto [k_bytes, v_bytes] = RowBytes(config, mesh, dtype);
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const bool cached = !config.layers[layer].linear;
    const auto make = [&](int64_t bytes) {
      return cached && bytes > 0 ? Tensor::Empty(dtype, {num_pages * page_size, bytes / size})
                                 : Tensor();
    };
    k_.push_back(make(k_bytes));
    v_.push_back(make(v_bytes));
  }
  if (config.has_moe()) router_faults_ = Tensor::Empty(DType::kI32, {num_pages * page_size});
}

KvStorage::KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                     int32_t page_size, DType dtype, kernels::Device& device)
    : num_pages_(num_pages), page_size_(page_size), dtype_(dtype) {
  const int64_t slots = (num_pages + 1) * page_size;
  memory_ = device.AllocateReleasable(Bytes(config, mesh, num_pages + 1, page_size, dtype));
  size_t used = 0;
  const auto allocate = [&](int64_t bytes, DType type) {
    const int64_t width = bytes / static_cast<int64_t>(SizeOf(type));
    std::shared_ptr<void> memory;
    if (memory_) {
      memory = {memory_, static_cast<std::byte*>(memory_->data()) + used};
      used += RoundUpToPage(static_cast<size_t>(slots * bytes));
    } else {
      memory = device.Allocate(slots * bytes);
    }
    const void* data = memory.get();
    return Tensor::View(data, type, {slots, width}, std::move(memory));
  };
  const auto [k_bytes, v_bytes] = RowBytes(config, mesh, dtype);
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    k_.push_back(allocate(k_bytes, dtype));
    v_.push_back(v_bytes ? allocate(v_bytes, dtype) : Tensor());
  }
  if (config.has_moe()) router_faults_ = allocate(sizeof(int32_t), DType::kI32);
}

void KvStorage::Release() {
  CHECK(memory_ != nullptr);
  memory_->Release();
}
void KvStorage::Restore() {
  CHECK(memory_ != nullptr);
  memory_->Restore();
}

std::vector<int32_t> KvStorage::RouterFaultsOf(std::span<const kernels::SequenceSpan> sequences,
                                               kernels::Device& device) const {
  std::vector<int32_t> first(sequences.size(), 0);
  if (!router_faults_.defined() || sequences.empty()) return first;
  std::vector<int32_t> faults(router_faults_.num_elements());
  device.CopyOut(faults.data(), router_faults_.raw(), router_faults_.num_bytes());
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (int32_t key = 0; key < sequences[i].kv_len; ++key) {
      const int32_t fault = faults[sequences[i].SlotOf(key, page_size_)];
      if (fault != 0 && (first[i] == 0 || fault < first[i])) first[i] = fault;
    }
  }
  return first;
}

void KvStorage::MoveRows(std::span<const SlotMove> moves) {
  const auto move_in = [&](Tensor& rows) {
    if (!rows.defined()) return;
    auto* const memory = static_cast<std::byte*>(rows.mutable_raw());
    const auto bytes = static_cast<int64_t>(rows.num_bytes()) / rows.dim(0);
    for (const SlotMove& move : moves) {
      CHECK(move.from >= 0 && move.from < rows.dim(0) && move.to >= 0 && move.to < rows.dim(0));
      std::memcpy(memory + move.to * bytes, memory + move.from * bytes, bytes);
    }
  };
  if (std::ranges::all_of(moves, [](const SlotMove& move) { return move.from == move.to; })) return;
  for (Tensor& rows : k_) move_in(rows);
  for (Tensor& rows : v_) move_in(rows);
  move_in(router_faults_);
}

size_t KvStorage::BytesPerToken(const ModelConfig& config, const Mesh& mesh, DType dtype) {
  const auto [k_bytes, v_bytes] = RowBytes(config, mesh, dtype);
  return static_cast<size_t>(CachedLayers(config) * (k_bytes + v_bytes));
}

}  // namespace switchyard
