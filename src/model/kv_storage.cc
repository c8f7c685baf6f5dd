#include "kernels/device.h"
#include "model/model.h"
#include "model/weights/shard.h"

namespace switchyard {
namespace {

// Elements of one token's rows in one layer on one rank: (k, v).
std::pair<int64_t, int64_t> RowWidths(const ModelConfig& config, const Mesh& mesh) {
  const AttentionConfig& a = config.attention;
  if (a.kind == AttentionConfig::Kind::kLatent) return {a.kv_lora_rank + a.qk_rope_head_dim, 0};
  const int64_t width = KvHeads(a, mesh).size() * a.head_dim;
  return {width, width};
}

}  // namespace

KvStorage::KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                     int32_t page_size, DType dtype)
    : num_pages_(num_pages), page_size_(page_size), dtype_(dtype) {
  const auto [k_width, v_width] = RowWidths(config, mesh);
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    k_.push_back(Tensor::Empty(dtype, {num_pages * page_size, k_width}));
    v_.push_back(v_width ? Tensor::Empty(dtype, {num_pages * page_size, v_width}) : Tensor());
  }
}

KvStorage::KvStorage(const ModelConfig& config, const Mesh& mesh, int64_t num_pages,
                     int32_t page_size, DType dtype, kernels::Device& device)
    : num_pages_(num_pages), page_size_(page_size), dtype_(dtype) {
  const int64_t slots = (num_pages + 1) * page_size;
  const auto allocate = [&](int64_t width) {
    std::shared_ptr<void> memory = device.Allocate(slots * width * SizeOf(dtype));
    const void* data = memory.get();
    return Tensor::View(data, dtype, {slots, width}, std::move(memory));
  };
  const auto [k_width, v_width] = RowWidths(config, mesh);
  for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
    k_.push_back(allocate(k_width));
    v_.push_back(v_width ? allocate(v_width) : Tensor());
  }
}

size_t KvStorage::BytesPerToken(const ModelConfig& config, const Mesh& mesh, DType dtype) {
  const auto [k_width, v_width] = RowWidths(config, mesh);
  return static_cast<size_t>(config.num_layers() * (k_width + v_width)) * SizeOf(dtype);
}

}  // namespace switchyard
