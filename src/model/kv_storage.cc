#include "model/kv_storage.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/check.h"
#include "kernels/cache_rows.h"
#include "kernels/compressed.h"
#include "kernels/device.h"
#include "model/weights/shard.h"

namespace switchyard {
namespace {

size_t RoundUpToPage(size_t bytes) {
  constexpr size_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

// Bytes of a place of entries, divided by the slots that share it and rounded up to whole elements.
int64_t EntryBytesOfSlot(const ModelConfig& config, int64_t layer, DType dtype) {
  const LayerConfig& kind = config.layers[layer];
  if (kind.compress == 0) return 0;
  const AttentionConfig& a = config.attention;
  const int64_t place =
      kernels::CacheRowBytes(dtype, a.head_dim) +
      (kind.overlaps ? kernels::CacheRowBytes(dtype, a.index_head_dim) : int64_t{0});
  const auto element = static_cast<int64_t>(SizeOf(dtype));
  const int64_t unit = kernels::EntrySpan(kind.compress) * element;
  return (place + unit - 1) / unit * element;
}

}  // namespace

kernels::EntryPlaces KvStorage::Entries(const ModelConfig& config, int64_t layer) {
  Tensor& places = v_[layer];
  const int64_t span = kernels::EntrySpan(config.layers[layer].compress);
  CHECK_EQ(page_size_ % span, 0);
  return {.data = places.mutable_raw(),
          .stride = span * (static_cast<int64_t>(places.num_bytes()) / places.dim(0)),
          .span = span,
          .dtype = dtype_};
}

kernels::EntryPlaces KvStorage::IndexEntries(const ModelConfig& config, int64_t layer) {
  kernels::EntryPlaces places = Entries(config, layer);
  places.data = static_cast<std::byte*>(places.data) +
                kernels::CacheRowBytes(dtype_, config.attention.head_dim);
  return places;
}

KvRowBytes KvStorage::RowBytes(const ModelConfig& config, int64_t layer, const Mesh& mesh,
                               DType dtype) {
  if (!config.layers[layer].attends()) return {};
  const AttentionConfig& a = config.attention;
  if (a.kind == AttentionConfig::Kind::kLatent)
    return {.k = kernels::CacheRowBytes(dtype, a.kv_lora_rank + a.qk_rope_head_dim),
            .v = config.has_indexer(layer) ? kernels::CacheRowBytes(dtype, a.index_head_dim) : 0};
  if (a.kind == AttentionConfig::Kind::kCompressed)
    return {.k = kernels::CacheRowBytes(dtype, a.head_dim),
            .v = EntryBytesOfSlot(config, layer, dtype)};
  const int64_t heads = KvHeads(config, layer, mesh).size();
  return {.k = heads * kernels::CacheRowBytes(dtype, a.head_dim),
          .v = heads * kernels::CacheRowBytes(dtype, a.value_dim())};
}

size_t KvStorage::Bytes(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                        int32_t page_size, DType dtype) {
  const auto slots = static_cast<size_t>(num_pages * page_size);
  size_t bytes = config.has_moe() ? RoundUpToPage(slots * sizeof(int32_t)) : 0;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const KvRowBytes row = RowBytes(config, layer, mesh, dtype);
    bytes += RoundUpToPage(slots * static_cast<size_t>(row.k)) +
             RoundUpToPage(slots * static_cast<size_t>(row.v));
  }
  return bytes;
}

template <typename Allocate>
void KvStorage::AddLayers(const ModelConfig& config, const Mesh& mesh, const Allocate& allocate) {
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    const KvRowBytes row = RowBytes(config, layer, mesh, dtype_);
    k_.push_back(row.k > 0 ? allocate(row.k, dtype_) : Tensor());
    v_.push_back(row.v > 0 ? allocate(row.v, dtype_) : Tensor());
  }
}

KvStorage::KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                     int32_t page_size, DType dtype, std::span<std::byte> memory, bool padding_page)
    : num_pages_(num_pages), page_size_(page_size), dtype_(dtype) {
  const int64_t pages = num_pages + (padding_page ? 1 : 0), slots = pages * page_size;
  CHECK_GE(memory.size(), Bytes(config, mesh, pages, page_size, dtype));
  const auto take = [&](int64_t bytes, DType type) {
    const void* data = memory.data();
    memory = memory.subspan(RoundUpToPage(static_cast<size_t>(slots * bytes)));
    return Tensor::View(data, type, {slots, bytes / static_cast<int64_t>(SizeOf(type))});
  };
  AddLayers(config, mesh, take);
  if (config.has_moe()) router_faults_ = take(sizeof(int32_t), DType::kI32);
}

KvStorage::KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                     int32_t page_size, DType dtype)
    : num_pages_(num_pages), page_size_(page_size), dtype_(dtype) {
  AddLayers(config, mesh, [&](int64_t bytes, DType type) {
    return Tensor::Empty(type, {num_pages * page_size, bytes / static_cast<int64_t>(SizeOf(type))});
  });
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
  AddLayers(config, mesh, allocate);
  if (config.has_moe()) router_faults_ = allocate(sizeof(int32_t), DType::kI32);
}

void KvStorage::Release() {
  CHECK(memory_ != nullptr);
  memory_->Release();
  states_.Release();
}
void KvStorage::Restore() {
  CHECK(memory_ != nullptr);
  memory_->Restore();
  states_.Restore();
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

void KvStorage::MoveRows(std::span<const SlotMove> moves, kernels::Device& device) {
  if (std::ranges::all_of(moves, [](const SlotMove& move) { return move.from == move.to; })) return;
  std::vector<kernels::RowArray> arrays;
  const auto add = [&](Tensor& rows) {
    if (!rows.defined() || rows.num_bytes() == 0) return;
    for (const SlotMove& move : moves)
      CHECK(move.from >= 0 && move.from < rows.dim(0) && move.to >= 0 && move.to < rows.dim(0));
    arrays.push_back({.data = rows.mutable_raw(),
                      .row_bytes = static_cast<int64_t>(rows.num_bytes()) / rows.dim(0)});
  };
  for (Tensor& rows : k_) add(rows);
  for (Tensor& rows : v_) add(rows);
  add(router_faults_);
  device.MoveRows({.arrays = arrays, .moves = moves});
}

size_t KvStorage::BytesPerToken(const ModelConfig& config, const Mesh& mesh, DType dtype) {
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer)
    bytes += RowBytes(config, layer, mesh, dtype).total();
  return static_cast<size_t>(bytes);
}

}  // namespace switchyard
