#include <fmt/format.h>

#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "model/weights/parts.h"

namespace switchyard {
namespace {

constexpr std::string_view kExpertKeys = "num_experts, hidden_size, moe_intermediate_size";

// The experts of each token id [vocabulary, top_k].
void AddTokenExperts(Parts& parts, const std::string& block, std::vector<Tensor>* owned,
                     RouterWeights* router) {
  const RouterConfig& config = parts.config().moe->router;
  const int64_t rows = parts.config().vocab_size, n = rows * config.top_k;
  std::vector<float> numbers(static_cast<size_t>(n));
  parts.Vector({.name = block + parts.names().token_experts,
                .n = n,
                .range = {0, n},
                .columns = config.top_k,
                .below = config.num_experts,
                .keys = "vocab_size, num_experts_per_tok"},
               numbers);
  owned->push_back(Tensor::Empty(DType::kI32, {n}));
  int32_t* experts = owned->back().data<int32_t>();
  for (const float number : numbers) *experts++ = static_cast<int32_t>(number);
  router->token_experts = std::as_const(owned->back()).data<int32_t>();
  router->token_rows = rows;
}

// `block`: the prefix of the MoE block.
RouterWeights BuildRouter(Parts& parts, const std::string& block, bool by_token,
                          std::vector<Tensor>* owned) {
  const std::string prefix = block + parts.names().router;
  const int64_t experts = parts.config().moe->router.num_logits();
  const auto vector = [&](const std::string& name) {
    owned->push_back(
        parts.Vector({.name = name, .n = experts, .range = {0, experts}, .keys = "num_experts"}));
    return std::as_const(owned->back()).data<float>();
  };
  RouterWeights w;
  w.w = parts.RouterMatrix(prefix, experts);
  if (parts.names().router_bias) w.bias = vector(prefix + ".bias");
  if (by_token) {
    AddTokenExperts(parts, block, owned, &w);
  } else if (parts.names().correction_bias) {
    owned->push_back(parts.Vector({.name = CorrectionBiasName(parts.names(), block),
                                   .n = experts,
                                   .range = {0, experts},
                                   .experts = parts.names().correction_bias_row ? 1 : 0,
                                   .keys = "num_experts"}));
    w.correction_bias = std::as_const(owned->back()).data<float>();
  }
  return w;
}

bool HasMxfp4Blocks(const Parts& parts, const std::string& block) {
  const TensorNames& names = parts.names();
  return names.interleaved_experts && parts.Has(block + names.stacked_gate_up + "_blocks");
}

// The shared expert of a layer, stored as one linear with gate and up rows, and a down linear.
kernels::ExpertWeights StackedShared(Parts& parts, const std::string& layer, Range part) {
  constexpr std::string_view kKeys = "hidden_size, shared_intermediate_size";
  const TensorNames& names = parts.names();
  const int64_t hidden = parts.config().hidden, whole = parts.config().moe->shared_intermediate;
  const auto rows = [&](int64_t first) {
    return parts
        .Rows(layer + names.shared_gate_up, 2 * whole, hidden,
              {first + part.begin, first + part.end}, false, kKeys)
        .w;
  };
  kernels::ExpertWeights w;
  w.gate = rows(0);
  w.up = rows(whole);
  w.down = parts.Columns(layer + names.shared_down, hidden, whole, part, false, kKeys).w;
  return w;
}

// One expert of the stacks gate_up [E, 2 I, H] and down [E, H, I] of a block. Gate rows precede up
// rows, or gate and up rows are interleaved. Both may be stored transposed; interleaved matrices
// are stored transposed or as MXFP4 blocks.
kernels::ExpertWeights FusedExpert(Parts& parts, const std::string& block, int e, Range part) {
  const TensorNames& names = parts.names();
  const bool alternate = names.interleaved_experts;
  const bool mxfp4 = HasMxfp4Blocks(parts, block);
  const int64_t hidden = parts.config().hidden, whole = parts.config().moe->intermediate;
  MatrixRequest gate{.name = block + names.stacked_gate_up,
                     .n = 2 * whole,
                     .k = hidden,
                     .rows = part,
                     .cols = {0, hidden},
                     .row_step = alternate ? 2 : 1,
                     .experts = parts.config().moe->router.num_experts,
                     .expert = e,
                     .total_rows = whole,
                     .scheme = parts.SchemeOf(block + names.stacked_gate_up),
                     .mxfp4_blocks = mxfp4,
                     .transposed = names.transposed_experts || (alternate && !mxfp4),
                     .keys = kExpertKeys};
  MatrixRequest up = gate;
  up.row0 = alternate ? 1 : whole;
  MatrixRequest down = gate;
  down.name = block + names.stacked_down;
  down.n = hidden;
  down.k = whole;
  down.rows = {0, hidden};
  down.cols = part;
  down.row_step = 1;
  down.total_rows = hidden;
  down.scheme = parts.SchemeOf(down.name);
  return {.gate = parts.Matrix(gate), .up = parts.Matrix(up), .down = parts.Matrix(down)};
}

// Biases of the stacks, gate_up [E, 2 I], interleaved; down [E, H], which only the first rank of a
// MoE-TP group adds.
void AddExpertBiases(Parts& parts, const std::string& block, std::span<const int32_t> mine,
                     Range part, std::vector<kernels::ExpertWeights>* experts,
                     std::vector<Tensor>* owned) {
  if (mine.empty()) return;
  const MoeModelConfig& moe = *parts.config().moe;
  const int64_t hidden = parts.config().hidden;
  const bool down = parts.mesh().moe_tp_rank() == 0;
  owned->push_back(
      Tensor::Empty(DType::kF32, {std::ssize(mine), 2 * part.size() + (down ? hidden : 0)}));
  float* next = owned->back().data<float>();
  const auto read = [&](const VectorRequest& request) {
    const float* out = next;
    parts.Vector(request, {next, static_cast<size_t>(request.range.size())});
    next += request.range.size();
    return out;
  };
  for (size_t i = 0; i < mine.size(); ++i) {
    const int e = mine[i];
    kernels::ExpertWeights& expert = (*experts)[i];
    VectorRequest gate{.name = block + parts.names().stacked_gate_up + "_bias",
                       .n = 2 * moe.intermediate,
                       .range = part,
                       .step = 2,
                       .experts = moe.router.num_experts,
                       .expert = e,
                       .keys = kExpertKeys};
    VectorRequest up = gate;
    up.offset = 1;
    expert.gate_bias = read(gate);
    expert.up_bias = read(up);
    if (down) {
      expert.down_bias = read({.name = block + parts.names().stacked_down + "_bias",
                               .n = hidden,
                               .range = {0, hidden},
                               .experts = moe.router.num_experts,
                               .expert = e,
                               .keys = kExpertKeys});
    }
  }
}

std::vector<kernels::ExpertWeights> ExpertsOfBlock(Parts& parts, const std::string& block,
                                                   std::span<const int32_t> mine,
                                                   std::vector<Tensor>* owned) {
  const MoeModelConfig& moe = *parts.config().moe;
  const TensorNames& names = parts.names();
  const Mesh& mesh = parts.mesh();
  const bool fused = names.interleaved_experts || names.stacked_experts ||
                     parts.Has(block + names.stacked_gate_up);
  const std::string prefix = block + "experts.";
  const std::string down = fused ? block + names.stacked_down : prefix + "0." + names.expert_down;
  const int64_t unit =
      HasMxfp4Blocks(parts, block) ? kMxfp4BlockSize : ColumnUnit(parts.SchemeOf(down));
  const Range part = EvenPart(moe.intermediate, mesh.moe_tp(), mesh.moe_tp_rank(), unit);
  std::vector<kernels::ExpertWeights> experts;
  for (const int e : mine) {
    const std::string one = fmt::format("{}{}.", prefix, e);
    experts.push_back(fused ? FusedExpert(parts, block, e, part)
                            : parts.FeedForward(one + names.expert_gate, one + names.expert_up,
                                                one + names.expert_down,
                                                parts.config().expert_row_width(), moe.intermediate,
                                                part, kExpertKeys));
  }
  if (names.expert_biases) AddExpertBiases(parts, block, mine, part, &experts, owned);
  return experts;
}

std::string BlockPrefix(const Parts& parts, const std::string& layer_prefix) {
  const TensorNames& names = parts.names();
  std::string block = layer_prefix + names.moe + ".";
  if (names.moe_alternative.empty()) return block;
  const std::string other = layer_prefix + names.moe_alternative + ".";
  const std::string router = names.router + ".weight";
  return !parts.Has(block + router) && parts.Has(other + router) ? other : block;
}

}  // namespace

std::vector<kernels::ExpertWeights> BuildExperts(Parts& parts, const std::string& prefix,
                                                 std::span<const int32_t> experts,
                                                 std::vector<Tensor>* owned) {
  return ExpertsOfBlock(parts, BlockPrefix(parts, prefix), experts, owned);
}

MoeLayerWeights BuildMoe(Parts& parts, const std::string& prefix, const ExpertPlacement& placement,
                         bool by_token, std::vector<Tensor>* owned) {
  const MoeModelConfig& moe = *parts.config().moe;
  const TensorNames& names = parts.names();
  const Mesh& mesh = parts.mesh();
  const std::string block = BlockPrefix(parts, prefix);
  MoeLayerWeights w;
  if (mesh.attends()) w.router = BuildRouter(parts, block, by_token, owned);
  const Range places = ExpertsOfRank(placement.num_physical(), mesh);
  w.experts = ExpertsOfBlock(
      parts, block, placement.physical_to_logical().subspan(places.begin, places.size()), owned);
  if (!mesh.attends()) return w;
  const int64_t shared = moe.shared_intermediate;
  if (shared != 0) {
    w.has_shared = true;
    const std::string name = block + names.shared;
    const bool stacked = !names.shared_gate_up.empty();
    const auto of_shared = [&](const std::string& expert, const char* other) {
      return name + "." + (names.shared_as_experts ? expert : other);
    };
    const std::string down =
        stacked ? prefix + names.shared_down : of_shared(names.expert_down, "down_proj");
    const Range part = parts.replicated_shared_expert()
                           ? Range{0, shared}
                           : parts.EvenColumns(down, shared, mesh.tp(), mesh.tp_rank());
    w.shared = stacked ? StackedShared(parts, prefix, part)
                       : parts.FeedForward(of_shared(names.expert_gate, "gate_proj"),
                                           of_shared(names.expert_up, "up_proj"), down,
                                           parts.config().hidden, shared, part,
                                           "hidden_size, the shared experts' intermediate "
                                           "size");
  }
  if (moe.shared_gate) {
    w.shared_gate = parts.Plain(block + names.shared_gate + ".weight", 1, {0, 1}, "hidden_size");
  }
  return w;
}

}  // namespace switchyard
