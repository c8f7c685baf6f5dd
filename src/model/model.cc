#include "model/model.h"

#include <algorithm>

#include "core/error.h"
#include "model/families/family.h"
#include "model/layers/context.h"
#include "model/layers/dense_feed_forward.h"
#include "model/layers/embedding_and_head.h"
#include "model/layers/grouped_attention.h"
#include "model/layers/latent_attention.h"
#include "model/rope.h"
#include "moe/exchange_memory.h"

namespace switchyard {
namespace {

MoeShape ShapeOf(const ModelConfig& config, int64_t max_tokens) {
  return {.hidden = config.hidden,
          .intermediate = config.moe->intermediate,
          .num_experts = config.moe->router.num_experts,
          .top_k = config.moe->router.top_k,
          .max_tokens = max_tokens,
          .has_shared = config.moe->shared_intermediate > 0};
}

std::optional<GroupedAttention> MakeGrouped(const ModelConfig& config, const Mesh& mesh,
                                            int64_t max_tokens) {
  if (config.attention.kind != AttentionConfig::Kind::kGrouped) return std::nullopt;
  return GroupedAttention(config, mesh, max_tokens);
}

std::optional<LatentAttention> MakeLatent(const ModelConfig& config, const Mesh& mesh,
                                          int64_t max_tokens) {
  if (config.attention.kind != AttentionConfig::Kind::kLatent) return std::nullopt;
  return LatentAttention(config, mesh, max_tokens);
}

// Whether the routed experts quantize their input rows to FP8 in groups of 128.
bool TakesFp8Groups(const ModelConfig& config) {
  const LinearSchemes schemes(config.quantization);
  const TensorNames names = FindFamily(config.architecture)->names(config);
  const auto layer = std::ranges::find_if(config.layers, &LayerConfig::moe);
  const auto index = layer - config.layers.begin();
  const std::string experts = fmt::format("{}{}.{}.experts.", names.layers, index, names.moe);
  const std::string one = names.interleaved_experts ? "gate_up_proj" : "0." + names.expert_gate;
  return schemes.Of(experts + one).activation == ActivationFormat::kFp8Group;
}

// Each layer is cut where its own format can be, so a rank's parts of them may differ in size.
std::optional<DenseFeedForward> MakeDense(const ModelWeights& weights, const ModelConfig& config,
                                          const Mesh& mesh, int64_t max_tokens) {
  if (std::ranges::all_of(config.layers, &LayerConfig::moe)) return std::nullopt;
  int64_t middle = 0;
  for (const LayerWeights& layer : weights.layers) {
    middle = std::max(middle, layer.dense.gate.n);  // 0 in layers with experts
  }
  return DenseFeedForward(config, mesh, middle, max_tokens);
}

// What follows from the model and the choice of backend and dtype, so that no caller can contradict
// it.
ModelOptions Complete(const ModelConfig& config, ModelOptions options, const MeshShape& mesh) {
  options.moe.row_dtype = options.dtype;
  options.load.whole_shared_expert = ScattersTokens(options.moe, mesh);
  if (options.context_length == 0) options.context_length = config.max_position;
  if (!config.has_moe()) return options;
  options.moe.fp8_group_activations = TakesFp8Groups(config);
  options.load.placements =
      LoadPlacements(options.moe.init_expert_location, config.num_layers(),
                     config.moe->router.num_experts, options.moe.num_redundant_experts);
  return options;
}

}  // namespace

struct Model::Impl {
  ModelConfig config;
  ModelOptions options;
  RankComm& comm;
  ThreadPool& pool;
  ModelWeights weights;
  Tensor cos_sin;  // [context_length, rotary_dim]
  EmbeddingAndHead vocabulary;
  std::optional<GroupedAttention> grouped;
  std::optional<LatentAttention> latent;
  std::optional<DenseFeedForward> dense;     // of the layers that are dense
  std::vector<std::optional<MoeLayer>> moe;  // one for each layer; empty for dense ones
  Activations residual, normed, branch;      // [T, H] each
  Activations selected;                      // [logit rows, H]
  std::vector<int32_t> routed;               // [T, layers, top_k] of the last batch that asked
  std::vector<int32_t> layer_routed;         // [T, top_k]
  // [dp] of the batch under way: what it says, or its own.
  std::vector<int64_t> group_tokens, group_decode_tokens, group_logit_rows;

  Impl(const std::filesystem::path& dir, ModelConfig model_config, ModelOptions model_options,
       RankComm& rank_comm, ThreadPool& threads)
      : config(std::move(model_config)),
        options(Complete(config, std::move(model_options), rank_comm.mesh.shape())),
        comm(rank_comm),
        pool(threads),
        weights(LoadWeights(dir, config, comm.mesh, options.load)),
        cos_sin(BuildCosSin(config.rope, options.context_length)),
        vocabulary(config, weights),
        grouped(MakeGrouped(config, comm.mesh, options.max_tokens)),
        latent(MakeLatent(config, comm.mesh, options.max_tokens)),
        dense(MakeDense(weights, config, comm.mesh, options.max_tokens)),
        moe(config.layers.size()),
        residual(options.max_tokens * config.hidden),
        normed(residual.size()),
        branch(residual.size()) {
    if (config.has_moe()) MakeMoeLayers();
  }

  void MakeMoeLayers() {
    const auto runtime = MakeMoeRuntime(options.moe, ShapeOf(config, options.max_tokens), comm,
                                        pool, options.backends);
    MoeLayerConfig layer_config{.hidden = config.hidden,
                                .router = config.moe->router,
                                .activation = config.activation,
                                .swiglu_alpha = config.swiglu_alpha,
                                .swiglu_limit = config.swiglu_limit};
    for (size_t i = 0; i < moe.size(); ++i) {
      if (!config.layers[i].moe) continue;
      layer_config.placement = options.load.placements[i];
      moe[i].emplace(layer_config, weights.layers[i].moe, runtime);
    }
  }

  void Norm(const float* x, const Tensor& weight, int64_t rows, float* y) {
    kernels::RmsNorm({.x = x,
                      .ldx = config.hidden,
                      .weight = weight.data<float>(),
                      .y = y,
                      .ldy = config.hidden,
                      .m = rows,
                      .n = config.hidden,
                      .eps = config.norm_eps},
                     pool);
  }

  // The sum over ranks joins the residual stream.
  void AddBranch(int64_t tokens) {
    kernels::AddInPlace(residual.data(), branch.data(), tokens * config.hidden, pool);
  }

  // Within the attention group, which does without where it has no tokens.
  void Attend(const LayerContext& c, int64_t layer) {
    const int64_t tokens = c.batch.num_tokens();
    if (tokens == 0) return;
    Norm(residual.data(), weights.layers[layer].input_norm, tokens, normed.data());
    if (grouped)
      grouped->Forward(c, weights.layers[layer].grouped, layer, normed.data(), branch.data());
    if (latent)
      latent->Forward(c, weights.layers[layer].latent, layer, normed.data(), branch.data());
    comm.attn_tp->AllReduceSum(branch.data(), tokens * config.hidden);
    AddBranch(tokens);
  }

  void FeedForward(const LayerContext& c, int64_t layer) {
    const int64_t tokens = c.batch.num_tokens();
    if (tokens > 0)
      Norm(residual.data(), weights.layers[layer].post_attention_norm, tokens, normed.data());
    if (moe[layer]) {
      moe[layer]->Forward(normed.data(),
                          {.group_tokens = group_tokens,
                           .group_decode_tokens = group_decode_tokens,
                           .routed_experts = routed.empty() ? nullptr : layer_routed.data()},
                          branch.data());
      KeepRoutedExperts(tokens, layer);
    } else {
      dense->Forward(c, weights.layers[layer].dense, normed.data(), branch.data());
    }
    if (tokens > 0) AddBranch(tokens);
  }

  // Rows of `routed` are laid out by token, those of a layer's answer are one layer's.
  void KeepRoutedExperts(int64_t tokens, int64_t layer) {
    if (routed.empty()) return;
    const int64_t k = config.moe->router.top_k, row = config.num_layers() * k;
    for (int64_t t = 0; t < tokens; ++t)
      std::copy_n(layer_routed.data() + t * k, k, routed.data() + t * row + layer * k);
  }

  void Begin(const ForwardBatch& batch) {
    const int64_t tokens = batch.num_tokens();
    CHECK_LE(tokens, options.max_tokens);
    const auto of_groups = [&](const std::vector<int64_t>& said, int64_t own,
                               std::vector<int64_t>& counts) {
      counts = said;
      if (counts.empty()) counts.push_back(own);
      CHECK_EQ(static_cast<int>(counts.size()), comm.mesh.dp());
      CHECK_EQ(counts[comm.mesh.dp_rank()], own);
    };
    of_groups(batch.group_tokens, tokens, group_tokens);
    of_groups(batch.group_decode_tokens, batch.decode_tokens, group_decode_tokens);
    of_groups(batch.group_logit_rows, std::ssize(batch.logit_rows), group_logit_rows);
    routed.clear();
    if (!batch.routed_experts || !config.has_moe()) return;
    const int64_t k = config.moe->router.top_k;
    routed.assign(tokens * config.num_layers() * k, -1);
    layer_routed.resize(tokens * k);
  }

  std::span<const float> Forward(const ForwardBatch& batch, KvStorage& kv) {
    Begin(batch);
    const TokenSpread spread(comm.mesh, group_tokens);
    const LayerContext c{config, batch, spread, cos_sin, kv, comm, pool};
    if (batch.num_tokens() > 0) vocabulary.Embed(batch.tokens, comm, pool, residual.data());
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      Attend(c, layer);
      FeedForward(c, layer);
    }
    const auto rows = static_cast<int64_t>(batch.logit_rows.size());
    selected.resize(rows * config.hidden);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(residual.data() + batch.logit_rows[i] * config.hidden, config.hidden,
                  selected.data() + i * config.hidden);
    }
    if (rows > 0) Norm(selected.data(), weights.final_norm, rows, selected.data());
    return vocabulary.Logits(selected.data(), group_logit_rows, comm, pool);
  }
};

Model::Model(const std::filesystem::path& dir, ModelConfig config, ModelOptions options,
             RankComm& comm, ThreadPool& pool)
    : impl_(std::make_unique<Impl>(dir, std::move(config), std::move(options), comm, pool)) {}
Model::~Model() = default;

std::span<const float> Model::Forward(const ForwardBatch& batch, KvStorage& kv) {
  return impl_->Forward(batch, kv);
}
std::span<const int32_t> Model::routed_experts() const { return impl_->routed; }
const ModelConfig& Model::config() const { return impl_->config; }

size_t SymmetricBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                             const MeshShape& shape) {
  const size_t moe = config.has_moe() ? MoeSymmetricBytes(Complete(config, options, shape).moe,
                                                          ShapeOf(config, options.max_tokens),
                                                          shape, options.backends.get())
                                      : 0;
  return RankComm::BytesPerRank(shape) + moe;
}

std::string DescribeExchangeMemory(const ModelConfig& config, const ModelOptions& options,
                                   const MeshShape& shape) {
  return DescribeExchangeMemory(Complete(config, options, shape).moe,
                                ShapeOf(config, options.max_tokens), shape, options.backends.get());
}

size_t WeightBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                          const Mesh& mesh) {
  return WeightBytesPerRank(config, mesh, Complete(config, options, mesh.shape()).load);
}

}  // namespace switchyard
