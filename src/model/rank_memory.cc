#include "model/rank_memory.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "kernels/cache_rows.h"
#include "kernels/recurrent.h"
#include "model/complete_options.h"
#include "model/kv_storage.h"
#include "model/layers/compressed_attention.h"
#include "model/layers/hidden_input.h"
#include "model/layers/linear_attention.h"
#include "model/layers/scratch.h"
#include "model/model.h"
#include "model/rank_device.h"
#include "model/rope.h"
#include "model/weights/shard.h"
#include "model/weights/source.h"
#include "moe/backends.h"
#include "moe/dispatchers/exchange_memory.h"
#include "moe/dispatchers/token_partition.h"
#include "moe/gpu_pass_memory.h"
#include "moe/router/routing_log_shape.h"
#include "moe/runners/grouped_mlp.h"
#include "moe/stream_experts.h"

namespace switchyard {
namespace {

// Maximum number of physical experts on a rank; of ranks with attention, if only these are on GPUs.
int64_t LocalExperts(const ModelConfig& config, const ModelOptions& options,
                     const MeshShape& shape) {
  if (!shape.expert_slots.empty() && options.moe.host_experts && options.gpu)
    return std::ranges::max(std::span(shape.expert_slots).first(shape.token_ranks()));
  if (!shape.expert_slots.empty()) return std::ranges::max(shape.expert_slots);
  return CeilDiv(config.moe->router.num_experts + options.moe.num_redundant_experts, shape.ep);
}

// The records of routing in a GPU's memory, one for each pass in flight.
size_t RoutingLogBytes(const ModelConfig& config, const ModelOptions& options,
                       const MeshShape& shape) {
  if (options.observed == Observed::kNothing || !config.has_moe()) return 0;
  const ModelOptions complete = CompleteOptions(config, options, shape);
  const RoutingLogShape log{
      .layers = static_cast<int>(std::ranges::count_if(config.layers, &LayerConfig::moe)),
      .experts = config.moe->router.num_experts,
      .physical = config.moe->router.num_experts + options.moe.num_redundant_experts,
      .local = static_cast<int>(LocalExperts(config, options, shape)),
      .top_k = config.moe->router.top_k,
      .max_rows = complete.max_pass_tokens,
      .tokens = options.observed == Observed::kTokens};
  return complete.moe.passes * log.Bytes();
}

// The memory in which a GPU holds the new experts of layers that have not switched yet.
size_t SpareExpertBytes(const ModelConfig& config, const ModelOptions& options,
                        const MeshShape& shape) {
  if (!options.movable_experts || !config.has_moe()) return 0;
  const int64_t layers = std::ranges::count_if(config.layers, &LayerConfig::moe);
  const int64_t held =
      options.movable_layers < 0 ? layers : std::min<int64_t>(layers, options.movable_layers);
  constexpr size_t kAlignment = 2048;  // alignment of an expert's arrays
  return static_cast<size_t>(held * LocalExperts(config, options, shape)) *
         (kAlignment +
          ExpertBytes(config, Mesh(shape, 0), CompletePlacedLoad(config, options, shape)));
}

// The buffers of streamed experts, and the tables of their places.
size_t StreamBufferBytes(const ModelConfig& config, const ModelOptions& options,
                         const MeshShape& shape) {
  if (options.moe.stream_tokens == 0 || !config.has_moe()) return 0;
  constexpr size_t kBuffers = 2, kAlignment = 256;
  const int experts = config.moe->router.num_experts, group = StreamGroup(experts);
  const auto layers = static_cast<size_t>(std::ranges::count_if(config.layers, &LayerConfig::moe));
  const auto table = static_cast<size_t>((1 + CeilDiv(experts, group)) *
                                         (experts + options.moe.num_redundant_experts));
  return layers * table * sizeof(int32_t) +
         kBuffers * static_cast<size_t>(group) *
             (kAlignment +
              ExpertBytes(config, Mesh(shape, 0), CompletePlacedLoad(config, options, shape)));
}

// Whether quantization may differ between layers of one kind.
bool NamesLayers(const QuantizationConfig& quantization) {
  if (!quantization.stored.empty()) return true;
  const auto names = [](const ModulePattern& pattern) {
    const std::string_view text = pattern.text;
    const size_t at = text.find("layers");
    return at != std::string_view::npos && !text.substr(at).starts_with("layers.*.");
  };
  if (std::ranges::any_of(quantization.ignored, names)) return true;
  const auto rule_names = [&](const SchemeRule& rule) {
    return std::ranges::any_of(rule.targets, names);
  };
  return std::ranges::any_of(quantization.rules, rule_names) ||
         std::ranges::any_of(quantization.chosen, rule_names);
}

struct Counted {
  WeightBytes bytes;
  int64_t dense_width = 0;
  bool fp8_attention = false;  // whether output projections of attention are FP8 blocks
};

Counted CountAll(const ModelConfig& config, const Mesh& mesh, const LoadOptions& load) {
  Counted counted;
  const ModelWeights weights = BuildWeights(
      config, mesh, load, *MakeCountingSource(config, load.gpu_plain_dtype, load.packs_experts),
      &counted.bytes);
  const bool latent = config.attention.kind == AttentionConfig::Kind::kLatent;
  for (const LayerWeights& layer : weights.layers) {
    counted.dense_width = std::max(counted.dense_width, layer.dense.gate.n);
    const WeightView& output = latent ? layer.latent.o.w : layer.grouped.o.w;  // or undefined
    counted.fp8_attention |= output.format == WeightFormat::kFp8Block;
  }
  return counted;
}

// The settings of a layer that may change its weights.
LayerConfig KindOf(LayerConfig layer) {
  layer.rope = true;
  layer.window = layer.chunk = 0;
  return layer;
}

// Layers of one kind have equal sizes, unless a rule names some of them. So one layer of each kind
// is counted, which is faster for plans that compare hundreds of layouts.
Counted Count(const ModelConfig& config, const Mesh& mesh, const LoadOptions& load) {
  if (NamesLayers(config.quantization)) return CountAll(config, mesh, load);
  Counted all;
  const double final_norm = config.has_head ? static_cast<double>(config.hidden) *
                                                  (config.layer_norm ? 2 : 1) * sizeof(float)
                                            : 0;
  for (auto first = config.layers.begin(); first != config.layers.end(); ++first) {
    const LayerConfig kind = KindOf(*first);
    const auto is_of_kind = [&](const LayerConfig& layer) { return KindOf(layer) == kind; };
    if (std::any_of(config.layers.begin(), first, is_of_kind)) continue;  // counted already
    const auto times = static_cast<double>(std::ranges::count_if(config.layers, is_of_kind));
    ModelConfig one = config;
    one.layers = {*first};
    LoadOptions of_one = load;
    if (!load.placements.empty())
      of_one.placements = {load.placements[first - config.layers.begin()]};
    const Counted counted = CountAll(one, mesh, of_one);
    const WeightBytes& b = counted.bytes;
    all.dense_width = std::max(all.dense_width, counted.dense_width);
    all.fp8_attention |= counted.fp8_attention;
    all.bytes.embedding = b.embedding;
    all.bytes.head = b.head;
    all.bytes.attention += times * b.attention;
    all.bytes.dense += times * b.dense;
    all.bytes.router += times * b.router;
    all.bytes.experts += times * b.experts;
    all.bytes.shared += times * b.shared;
    all.bytes.norms += times * (b.norms - final_norm);
  }
  all.bytes.norms += final_norm;
  return all;
}

// The larger of the first and the last rank's weights; with ranks that have experts only, those of
// the first rank. Where blocks of a format do not divide
// evenly over ranks, the last rank has the most columns. Its part may also start within a block of
// a panel, and is expanded then.
Counted CountLargest(const ModelConfig& config, const MeshShape& mesh, const LoadOptions& load) {
  Counted first = Count(config, Mesh(mesh, 0), load);
  const bool same = config.quantization.none() && mesh.expert_slots.empty();
  if (mesh.tp == 1 || mesh.expert_ranks > 0 || same) return first;
  const Counted last = Count(config, Mesh(mesh, mesh.tp - 1), load);
  return last.bytes.total() > first.bytes.total() ? last : first;
}

// The sizes of one rank's pass.
class PassSizes {
 public:
  PassSizes(const ModelConfig& config, const ModelOptions& options, const MeshShape& shape,
            const Counted& counted)
      : c_(config),
        o_(options),
        mesh_(shape, 0),
        rows_(options.max_pass_tokens),
        dense_width_(counted.dense_width),
        fp8_attention_(counted.fp8_attention) {}

  // Rows of a pass: residual, normed and branch, ids, and the scratch of the largest layer. CPU
  // kernels also keep one buffer of rounded input rows.
  double Activations() const {
    const auto rows = static_cast<double>(rows_);
    double bytes = rows * (2.0 * c_.hidden * sizeof(float) + 6 * sizeof(int32_t));
    bytes += rows * static_cast<double>(c_.residual_width()) * sizeof(float);
    if (c_.streams)
      bytes +=
          rows * sizeof(float) *
          static_cast<double>(c_.streams->logits() + 1 + kernels::StreamMix(c_.streams->count));
    if (c_.has_token_routing()) bytes += rows * (c_.hidden + 1.0) * sizeof(float);
    bytes += rows * static_cast<double>(c_.attention.input_width) * sizeof(float);  // joined rows
    if (c_.has_shortcuts()) bytes += rows * c_.hidden * sizeof(float);
    if (c_.has_moe()) bytes += rows * c_.moe->router.top_k * sizeof(int32_t);
    if (c_.has_moe()) bytes += 2 * rows * static_cast<double>(c_.moe->latent) * sizeof(float);
    bytes += rows * static_cast<double>(c_.attention.index_topk) * sizeof(int32_t);
    if (c_.has_states() && o_.gpu) bytes += rows * sizeof(kernels::StateSpan);
    bytes += static_cast<double>(LayerFloats()) * sizeof(float);
    return o_.moe.passes * bytes + (o_.gpu ? 0 : RoundedRows());
  }

  double Moe() const {
    if (!c_.has_moe()) return 0;
    return o_.moe.passes * (o_.gpu ? GpuMoe() : CpuMoe());
  }

  // Scratch of a GPU's kernels: partial results of attention, the tables of sequences, and rounded
  // rows of linear layers. The last is a little less than planned if a kernel rounds its rows
  // itself.
  double Scratch() const {
    if (!o_.gpu) return 0;
    constexpr double kAttention = int64_t{256} << 20;  // kernels/cuda/attention.h
    const int64_t sequences = std::min(o_.gpu->max_sequences, o_.max_tokens);
    const int64_t pages = CeilDiv(o_.context_length, o_.page_size) + 1;
    const bool trees = o_.gpu->max_branch > 0;
    const int64_t branch = trees ? 2 + o_.gpu->max_branch : 0;
    const int64_t tables = trees && o_.gpu->max_page_tables > 0
                               ? std::min(o_.gpu->max_page_tables, sequences)
                               : sequences;
    const auto table =
        static_cast<double>(sequences * (3 + branch) + tables * pages + o_.max_tokens);
    return kAttention + o_.moe.passes * table * sizeof(int32_t) + RoundedRowsOfGpu();
  }

  double Logits(int64_t logit_rows) const {
    const auto rows = static_cast<double>(logit_rows);
    const auto vocab = static_cast<double>(c_.output_width());
    if (!c_.has_head) return 0;
    const bool split = mesh_.dp() > 1 && !mesh_.replicated_dense() && !c_.pooling;
    // The logits, and the hidden rows that they are computed from.
    double floats = rows * (vocab + static_cast<double>(c_.hidden));
    if (split || (mesh_.attn_tp() > 1 && !c_.pooling)) {
      const double all = split ? mesh_.dp() * rows : rows;
      const int ranks = split ? mesh_.tp() : mesh_.attn_tp();
      floats += rows * vocab + all * CeilDiv(c_.output_width(), ranks);
      if (split) floats += all * c_.hidden;
    }
    if (o_.gpu) floats += rows * vocab;  // the copy that the sampler changes
    if (o_.gpu && c_.head_rows() < c_.vocab_size) floats += vocab;  // their tokens, of 4 bytes too
    return floats * sizeof(float);
  }

 private:
  // The results of ScratchFloats of GroupedAttention, LatentAttention, DenseFeedForward and
  // HiddenInput.
  int64_t LayerFloats() const {
    const AttentionConfig& a = c_.attention;
    const int64_t heads = QueryHeads(a, mesh_).size();
    int64_t attention = 0;
    if (a.kind == AttentionConfig::Kind::kGrouped) {
      const int64_t kv = MostKvHeads(c_, mesh_), q = o_.gpu ? heads + 2 * kv : heads;
      const int64_t widest = std::max(a.head_dim, a.value_dim());
      const int64_t gates = a.gate_in_q ? rows_ * heads * a.head_dim : 0;
      attention = LayerScratch::Floats({rows_ * q * widest, rows_ * kv * a.head_dim,
                                        rows_ * kv * a.value_dim(), rows_ * heads * widest,
                                        2 * rows_, rows_ * kv, 2 * gates, gates});
    } else if (a.kind == AttentionConfig::Kind::kCompressed) {
      attention = CompressedScratchFloats(a, heads, rows_);
    } else {
      const int64_t latent = a.kv_lora_rank + a.qk_rope_head_dim;
      attention = LayerScratch::Floats(
          {rows_ * a.q_lora_rank, rows_ * heads * (a.qk_nope_head_dim + a.qk_rope_head_dim),
           rows_ * latent, rows_ * heads * latent, rows_ * heads * a.kv_lora_rank,
           rows_ * heads * a.v_head_dim, rows_ * a.index_head_dim,
           rows_ * a.index_heads * a.index_head_dim, rows_ * a.index_heads,
           a.gate ? rows_ * heads : 0});
    }
    if (c_.has_linear())
      attention = std::max(
          attention, LinearScratchFloats(
                         *c_.linear, LinearKeyHeads(*c_.linear, mesh_).size(), rows_,
                         o_.gpu && kernels::ChunksPrompts(c_.linear->rule, c_.linear->key_dim)));
    return std::max(
        {attention, DenseFloats(), LayerScratch::Floats({rows_ * HiddenInputScratchWidth(c_)})});
  }

  int64_t DenseFloats() const {
    if (dense_width_ == 0) return 0;
    if (mesh_.replicated_dense())
      return LayerScratch::Floats({CeilDiv(rows_, mesh_.attn_tp()) * dense_width_});
    if (mesh_.dp() == 1) return LayerScratch::Floats({rows_ * dense_width_});
    const int64_t all = rows_ * mesh_.dp();
    return LayerScratch::Floats({all * c_.hidden, all * c_.hidden, all * dense_width_});
  }

  // Buffers of rounded rows of a GPU's linear layers (LinearOps). A buffer that is too small for
  // the next layer is kept, and a new one has at least twice its size.
  double RoundedRowsOfGpu() const {
    if (Precision() == DType::kF32) return 0;
    const AttentionConfig& a = c_.attention;
    const int64_t heads = QueryHeads(a, mesh_).size();
    const auto rows = static_cast<double>(o_.max_tokens);
    double current = 0, all = 0;
    const auto use = [&](int64_t width, bool fp8) {
      const double bytes = rows * static_cast<double>(width) * (fp8 ? 1 : 2);
      if (bytes <= current) return;
      current = std::max(bytes, 2 * current);
      all += current;
    };
    const bool latent = a.kind == AttentionConfig::Kind::kLatent;
    // With grouped attention in bfloat16, the norm and attention round their rows themselves,
    // unless the model has layers with linear attention, or values of another width than keys.
    if (latent || fp8_attention_ || c_.has_states() || a.value_dim() != a.head_dim) {
      use(c_.hidden, fp8_attention_);
      if (latent) use(a.q_lora_rank, fp8_attention_);
      // Rows of the output projection.
      const bool grouped = a.kind == AttentionConfig::Kind::kCompressed;
      use(grouped ? heads * a.output_groups / a.heads * a.output_rank : heads * a.value_dim(),
          fp8_attention_);
      if (c_.has_linear())
        use(LinearKeyHeads(*c_.linear, mesh_).size() * c_.linear->group() * c_.linear->value_dim,
            fp8_attention_);
    }
    if (dense_width_ > 0) use(dense_width_, fp8_attention_);
    if (c_.has_head) use(c_.hidden, false);
    if (c_.activation == kernels::Activation::kRelu2) return all;
    // The up projection of dense layers (LinearOps::Mlp).
    return all + rows * static_cast<double>(dense_width_) * sizeof(float);
  }

  // The buffer of rounded input rows of CPU kernels (cpu::OpScratch): bfloat16, or int8 codes with
  // scales and sums of blocks (kernels/cpu/int8_blocks.h). It has the size of the largest product.
  double RoundedRows() const {
    constexpr double kCodeBytes = 1.0 + (4 + 8 * 4) / 128.0;
    const QuantizationConfig& q = c_.quantization;
    const double plain = q.bfloat16_rows ? 2 : 0;
    const double quantized = q.none()              ? plain
                             : q.int8_group_rows   ? kCodeBytes
                             : q.fp8_bfloat16_rows ? 2
                                                   : 0;
    const AttentionConfig& a = c_.attention;
    const int64_t heads = QueryHeads(a, mesh_).size();
    const int64_t widest =
        std::max({c_.hidden, heads * a.value_dim(), dense_width_, HiddenInputScratchWidth(c_)});
    const double linears = static_cast<double>(rows_) * static_cast<double>(widest);
    double bytes = linears * std::max(plain, quantized);
    if (c_.has_moe()) bytes = std::max(bytes, ExpertRows() * ExpertWidth() * quantized);
    return bytes;
  }

  // Tokens that this rank routes.
  double Lane() const {
    return static_cast<double>(
        ScattersTokens(o_.moe, mesh_.shape()) ? MaxLaneTokens(mesh_.shape(), rows_) : rows_);
  }
  double ExpertWidth() const {
    return static_cast<double>(CeilDiv(c_.moe->intermediate, mesh_.moe_tp()));
  }
  // Rows of this rank's experts. Over several ranks, a rank is assumed to get its even share of the
  // rows of all lanes, and a quarter more.
  double ExpertRows() const {
    const double all = Lane() * c_.moe->router.top_k;
    if (mesh_.ep() == 1) return all;
    const double lanes = ScattersTokens(o_.moe, mesh_.shape()) ? mesh_.ep() : 1;
    return std::min(lanes * all, 1.25 * lanes * all / mesh_.ep());
  }

  // Width of the rows that routers read beside those of the experts; 0: they read the same rows.
  int64_t RouterRowWidth() const {
    if (c_.has_token_routing()) return c_.hidden + 1;
    return c_.moe->latent > 0 ? c_.hidden : 0;
  }

  double CpuMoe() const {
    const double k = c_.moe->router.top_k, lane = Lane();
    const auto hidden = static_cast<double>(c_.expert_row_width());
    double bytes = lane * (c_.moe->router.num_logits() * sizeof(float) + 2 * k * 8);
    // Row lists of the experts: three int32 for each row of an expert.
    bytes += ExpertRows() * 3 * sizeof(int32_t);
    const bool none = o_.moe.a2a_backend == "none";
    // Outputs of experts stay here with `none`; exchanges have buffers for them.
    const double tile =
        none ? ExpertRows() : std::min<double>(ExpertRows(), GroupedMlpRunner::kTileRows);
    bytes += tile * (hidden + ExpertWidth()) * sizeof(float);
    if (none && o_.moe.row_dtype != DType::kF32)  // rounded input rows
      bytes += lane * (mesh_.dp() > 1 ? mesh_.ep() : 1) * hidden * sizeof(float);
    if (c_.moe->router.zero_experts > 0) bytes += lane * sizeof(float);
    if (mesh_.moe_tp() > 1)  // gathered rows of the router
      bytes += lane * static_cast<double>(RouterRowWidth()) * sizeof(float);
    if (c_.moe->router.scales_input) bytes += lane * hidden * sizeof(float);
    if (c_.moe->shared_intermediate > 0) {
      const bool whole = o_.load.replicated_shared_expert;
      const double own = whole ? lane / mesh_.moe_tp() : lane;
      const auto width = static_cast<double>(
          whole ? c_.moe->shared_intermediate : CeilDiv(c_.moe->shared_intermediate, mesh_.tp()));
      bytes += own * (hidden + width) * sizeof(float);
    }
    return bytes;
  }

  double GpuMoe() const {
    MoeOptions moe = o_.moe;
    moe.row_dtype = Precision();
    moe.fp8_group_activations &= moe.row_dtype != DType::kF32;
    const bool whole = o_.load.replicated_shared_expert;
    const int64_t shared = c_.moe->shared_intermediate;
    const cuda::GpuExpertSizes experts{
        .intermediate = CeilDiv(c_.moe->intermediate, mesh_.moe_tp()),
        .shared_intermediate = whole ? shared : CeilDiv(shared, mesh_.tp()),
        .fp8 = moe.fp8_group_activations && o_.gpu->packs_experts,
        .gated = c_.activation != kernels::Activation::kRelu2};
    const GpuMoeBackends builtin = BuiltinGpuBackends();
    return cuda::GpuPassBytes(moe, MoeShapeOf(c_, rows_), mesh_.shape(), experts,
                              o_.backends ? o_.backends->gpus : builtin);
  }

  // The precision of a GPU.
  DType Precision() const { return o_.dtype == DType::kF32 ? DType::kF32 : DType::kBF16; }

  const ModelConfig& c_;
  const ModelOptions& o_;
  const Mesh mesh_;
  const int64_t rows_, dense_width_;
  const bool fp8_attention_;
};

}  // namespace

WeightBytes WeightsOfRank(const ModelConfig& config, const MeshShape& mesh,
                          const LoadOptions& load) {
  return CountLargest(config, mesh, load).bytes;
}

RankMemory MemoryOfRank(const ModelConfig& config, const ModelOptions& options,
                        const MeshShape& mesh, const RankMemoryShape& shape) {
  const ModelOptions complete = CompleteOptions(config, options, mesh);
  const LoadOptions load = CompletePlacedLoad(config, options, mesh);
  RankMemory memory;
  const Counted counted = CountLargest(config, mesh, load);
  memory.weights = counted.bytes;
  const PassSizes sizes(config, complete, mesh, counted);
  memory.kv_per_token =
      static_cast<double>(KvStorage::BytesPerToken(config, Mesh(mesh, 0), shape.kv_dtype));
  memory.states = static_cast<double>(shape.states) *
                  static_cast<double>(StateStorage::BytesPerSlot(config, Mesh(mesh, 0)));
  memory.activations = sizes.Activations();
  memory.moe = sizes.Moe();
  memory.logits = sizes.Logits(shape.logit_rows);
  const int64_t angles =
      config.rope.rotary_dim + (config.window_rope ? config.window_rope->rotary_dim : 0);
  memory.tables = static_cast<double>(complete.context_length) *
                  static_cast<double>(angles + QueryScaleWidth(config.attention)) * sizeof(float);
  memory.scratch = sizes.Scratch();
  memory.exchange = static_cast<double>(options.gpu ? GpuBytesPerRank(config, options, mesh)
                                                    : SymmetricBytesPerRank(config, options, mesh));
  return memory;
}

size_t SymmetricBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                             const MeshShape& shape) {
  size_t moe = 0;
  if (config.has_moe() && !options.gpu) {
    const ModelOptions complete = CompleteOptions(config, options, shape);
    moe = MoeSymmetricBytes(complete.moe, MoeShapeOf(config, complete.max_pass_tokens), shape,
                            options.backends.get());
  }
  return RankComm::BytesPerRank(shape) + moe;
}

size_t GpuBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                       const MeshShape& shape) {
  const ModelOptions complete = CompleteOptions(config, options, shape);
  return CudaPeerBytes(config, complete, shape) + StageRowsBytes(config, complete, shape) +
         RoutingLogBytes(config, complete, shape) + SpareExpertBytes(config, complete, shape) +
         StreamBufferBytes(config, complete, shape);
}

std::string DescribeExchangeMemory(const ModelConfig& config, const ModelOptions& options,
                                   const MeshShape& shape) {
  const ModelOptions complete = CompleteOptions(config, options, shape);
  return DescribeExchangeMemory(complete.moe, MoeShapeOf(config, complete.max_pass_tokens), shape,
                                options.backends.get());
}

size_t WeightBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                          const Mesh& mesh) {
  return WeightBytesPerRank(config, mesh, CompletePlacedLoad(config, options, mesh.shape()));
}

}  // namespace switchyard
