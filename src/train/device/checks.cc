#include "train/device/checks.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "train/device/ops.h"

namespace switchyard::train {
namespace {

// Limits of the kernels (train/cuda/routing.h).
constexpr int kMostExperts = 512, kMostSlots = 16;

}  // namespace

void CheckDeviceModel(const ModelConfig& config, const LossOptions& options) {
  const auto refuse = [&](bool is, std::string_view what) {
    if (is) throw Invalid("{}: {} cannot be trained on GPUs", config.architecture, what);
  };
  refuse(options.mtp_only, "MTP modules alone");
  refuse(config.moe && (config.moe->router.num_experts > kMostExperts ||
                        config.moe->router.top_k > kMostSlots),
         "a router of more than 512 experts, or more than 16 for a token,");
}

void CheckFp8Widths(const ModelConfig& config) {
  const auto check = [&](std::string_view name, int64_t width) {
    if (width % kFp8Block != 0)
      throw Invalid("{}: {} is {}; --compute-dtype fp8 needs a multiple of {}", config.architecture,
                    name, width, kFp8Block);
  };
  check("hidden_size", config.hidden);
  const AttentionConfig& a = config.attention;
  if (a.kind == AttentionConfig::Kind::kLatent) {
    check("q_lora_rank", a.q_lora_rank);
    check("kv_lora_rank", a.kv_lora_rank);
    check("the width of all queries", a.heads * (a.qk_nope_head_dim + a.qk_rope_head_dim));
    check("the width of all keys and values", a.heads * (a.qk_nope_head_dim + a.v_head_dim));
    check("the width of all values", a.heads * a.v_head_dim);
  } else {
    check("the width of all queries", a.heads * a.head_dim);
    check("the width of all keys", a.kv_heads * a.head_dim);
  }
  if (std::ranges::any_of(config.layers, [](const LayerConfig& layer) { return !layer.moe; }))
    check("intermediate_size", config.intermediate);
  if (!config.moe) return;
  check("the width of an expert", config.moe->intermediate);
  check("the width of shared experts", config.moe->shared_intermediate);
}

}  // namespace switchyard::train
