#include "kernels/cuda/attention/attention.h"

#include "core/check.h"
#include "core/cuda/runtime.h"
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/select_keys.h"

namespace switchyard::cuda {
namespace {

bool HasTileType(DType cache) { return cache == DType::kBF16 || cache == DType::kF8E4M3; }

bool IsAligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

void Start(AttentionLaunch& launch, bool exact, bool latent, std::span<std::byte> scratch,
           const PdlStream& chain) {
  if (launch.table.num_sequences == 0 || launch.table.num_rows == 0) return;
  CHECK_GT(launch.kv_heads, 0);
  CHECK_EQ(launch.heads % launch.kv_heads, 0);
  CHECK(launch.qk_dim <= 1024 && launch.v_dim <= 512);
  CHECK(launch.kv_dtype == DType::kF32 || launch.kv_dtype == DType::kBF16 ||
        launch.kv_dtype == DType::kF16 || launch.codes());
  CHECK((launch.k_scales == nullptr && launch.v_scales == nullptr) || launch.codes());
  if (exact || !HasTileType(launch.kv_dtype) ||
      !HasAttentionTiles(launch.qk_dim, launch.v_dim, latent)) {
    Check(LaunchSimtAttention(launch, chain.stream), "attention");
    return;
  }
  CHECK(IsAligned(launch.q) && IsAligned(launch.out) && IsAligned(launch.bf16_out));
  CHECK(IsAligned(launch.k) && IsAligned(launch.v));
  CHECK(launch.ldq % 4 == 0 && launch.ldo % 4 == 0);
  CHECK(!launch.bf16_out || launch.ldo % 8 == 0);
  CHECK_GT(launch.scale, 0.0f);
  CHECK(IsAligned(scratch.data()));
  launch.hopper = IsHopper();
  launch.scratch = reinterpret_cast<float*>(scratch.data());
  launch.scratch_floats = static_cast<int64_t>(scratch.size() / sizeof(float));
  cudaError_t error =
      latent ? StartTiledLatentAttention(launch, chain) : StartTiledAttention(launch, chain);
  if (error == cudaErrorNotSupported) error = LaunchSimtAttention(launch, chain.stream);
  Check(error, "attention");
}

}  // namespace

void Attention(const kernels::AttentionParams& p, const SequenceTable& table, bool exact,
               const PdlStream& chain, std::span<std::byte> scratch) {
  AttentionLaunch launch = {.q = p.q,
                            .ldq = p.ldq,
                            .bf16_queries = p.bf16_queries,
                            .k = p.k_cache,
                            .v = p.v_cache,
                            .kv_dtype = p.kv_dtype,
                            .k_scales = p.k_scales,
                            .v_scales = p.v_scales,
                            .heads = static_cast<int>(p.heads),
                            .kv_heads = static_cast<int>(p.kv_heads),
                            .qk_dim = static_cast<int>(p.head_dim),
                            .v_dim = static_cast<int>(p.value_width()),
                            .v_width = static_cast<int>(p.value_width()),
                            .scale = p.scale,
                            .value_scale = p.value_scale,
                            .window = p.window,
                            .chunk = p.chunk,
                            .sinks = p.sinks,
                            .out = p.out,
                            .ldo = p.ldo,
                            .bf16_out = static_cast<__nv_bfloat16*>(p.bf16_out),
                            .table = table};
  CHECK(p.window == 0 || p.chunk == 0);
  CHECK(!(p.bf16_out || p.bf16_queries) || AttentionToBFloat16(p, exact));
  Start(launch, exact, false, scratch, chain);
}

bool AttentionToBFloat16(const kernels::AttentionParams& p, bool exact) {
  return !exact && HasTileType(p.kv_dtype) && p.value_width() == p.head_dim &&
         (p.head_dim == 64 || p.head_dim == 128) && IsHopper();
}

void LatentAttention(const kernels::LatentAttentionParams& p, const SequenceTable& table,
                     bool exact, const PdlStream& chain, std::span<std::byte> scratch) {
  AttentionLaunch launch = {.q = p.q,
                            .ldq = p.ldq,
                            .k = p.cache,
                            .v = p.cache,
                            .kv_dtype = p.kv_dtype,
                            .k_scales = p.cache_scale,
                            .v_scales = p.cache_scale,
                            .heads = static_cast<int>(p.heads),
                            .kv_heads = 1,
                            .qk_dim = static_cast<int>(p.lora + p.rope),
                            .v_dim = static_cast<int>(p.lora),
                            .v_width = static_cast<int>(p.lora + p.rope),
                            .scale = p.scale,
                            .out = p.out,
                            .ldo = p.ldo,
                            .table = table};
  if (p.selected == nullptr || table.num_sequences == 0 || table.num_rows == 0)
    return Start(launch, exact, true, scratch, chain);
  const size_t bytes = SelectedSequencesBytes(table.num_rows);
  CHECK_GE(scratch.size(), bytes);
  FillSelectedSequences(table, p.topk, scratch.data(), chain.stream);
  for (int32_t first = 0; first < table.num_rows; first += kSelectedRows) {
    launch.table = SelectedSequences(table, p.selected, p.topk, scratch.data(), first);
    launch.q = p.q + first * p.ldq;
    launch.out = p.out + first * p.ldo;
    Start(launch, exact, true, scratch.subspan(bytes), chain.stream);
  }
}

}  // namespace switchyard::cuda
