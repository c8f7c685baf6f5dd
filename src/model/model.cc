#include "model/model.h"

#include <algorithm>

#include "core/error.h"
#include "model/layers/context.h"
#include "model/layers/grouped_attention.h"
#include "model/layers/latent_attention.h"
#include "model/layers/vocabulary.h"
#include "model/rope.h"

namespace switchyard {
namespace {

MoeShape ShapeOf(const ModelConfig& config, int64_t max_tokens) {
  return {.hidden = config.hidden,
          .intermediate = config.moe->intermediate,
          .num_experts = config.moe->router.num_experts,
          .top_k = config.moe->router.top_k,
          .max_tokens = max_tokens};
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

// What follows from the choice of backend and dtype, so that no caller can contradict it.
ModelOptions Complete(const ModelConfig& config, ModelOptions options) {
  options.moe.row_dtype = options.dtype;
  options.load.whole_shared_expert = WholeSharedExpert(options.moe);
  if (options.context_length == 0) options.context_length = config.max_position;
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
  Vocabulary vocabulary;
  std::optional<GroupedAttention> grouped;
  std::optional<LatentAttention> latent;
  std::vector<std::optional<MoeLayer>> moe;  // one for each layer; empty for dense ones
  Activations residual, normed, branch;      // [T, H] each
  Activations dense_middle;                  // [T, I of this rank]
  Activations selected;                      // [logit rows, H]

  Impl(const std::filesystem::path& dir, ModelConfig model_config, ModelOptions model_options,
       RankComm& rank_comm, ThreadPool& threads)
      : config(std::move(model_config)),
        options(Complete(config, std::move(model_options))),
        comm(rank_comm),
        pool(threads),
        weights(LoadWeights(dir, config, comm.mesh, options.load)),
        cos_sin(BuildCosSin(config.rope, options.context_length)),
        vocabulary(config, weights),
        grouped(MakeGrouped(config, comm.mesh, options.max_tokens)),
        latent(MakeLatent(config, comm.mesh, options.max_tokens)),
        moe(config.layers.size()),
        residual(options.max_tokens * config.hidden),
        normed(residual.size()),
        branch(residual.size()) {
    int64_t widest = 0;
    for (const LayerWeights& layer : weights.layers) widest = std::max(widest, layer.dense.gate.n);
    dense_middle.resize(options.max_tokens * widest);
    if (config.has_moe()) MakeMoeLayers();
  }

  void MakeMoeLayers() {
    const auto runtime =
        MakeMoeRuntime(options.moe, ShapeOf(config, options.max_tokens), comm, pool);
    const MoeLayerConfig layer_config{.hidden = config.hidden,
                                      .router = config.moe->router,
                                      .activation = config.activation,
                                      .swiglu_alpha = config.swiglu_alpha,
                                      .swiglu_limit = config.swiglu_limit};
    for (size_t i = 0; i < moe.size(); ++i) {
      if (config.layers[i].moe) moe[i].emplace(layer_config, weights.layers[i].moe, runtime);
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

  // The sum over TP ranks joins the residual stream.
  void AddBranch(int64_t tokens) {
    kernels::AddInPlace(residual.data(), branch.data(), tokens * config.hidden, pool);
  }

  void Attend(const LayerContext& c, int64_t layer) {
    if (grouped)
      grouped->Forward(c, weights.layers[layer].grouped, layer, normed.data(), branch.data());
    if (latent)
      latent->Forward(c, weights.layers[layer].latent, layer, normed.data(), branch.data());
    comm.tp->AllReduceSum(branch.data(), c.batch.num_tokens() * config.hidden);
  }

  void FeedForward(const LayerContext& c, int64_t layer) {
    const int64_t tokens = c.batch.num_tokens();
    if (moe[layer]) {
      moe[layer]->Forward(normed.data(), tokens, c.batch.decode, branch.data());
      return;
    }
    const int32_t offsets[] = {0, static_cast<int32_t>(tokens)};
    kernels::GroupedMlp({.x = normed.data(),
                         .ldx = config.hidden,
                         .experts = {&weights.layers[layer].dense, 1},
                         .offsets = offsets,
                         .activation = config.activation,
                         .alpha = config.swiglu_alpha,
                         .limit = config.swiglu_limit,
                         .scratch = dense_middle.data(),
                         .out = branch.data(),
                         .ldo = config.hidden},
                        pool);
    comm.tp->AllReduceSum(branch.data(), tokens * config.hidden);
  }

  std::span<const float> Forward(const ForwardBatch& batch, KvStorage& kv) {
    const int64_t tokens = batch.num_tokens();
    CHECK_LE(tokens, options.max_tokens);
    const LayerContext c{config, batch, cos_sin, kv, comm, pool};
    vocabulary.Embed(batch.tokens, comm, pool, residual.data());
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      Norm(residual.data(), weights.layers[layer].input_norm, tokens, normed.data());
      Attend(c, layer);
      AddBranch(tokens);
      Norm(residual.data(), weights.layers[layer].post_attention_norm, tokens, normed.data());
      FeedForward(c, layer);
      AddBranch(tokens);
    }
    const auto rows = static_cast<int64_t>(batch.logit_rows.size());
    selected.resize(rows * config.hidden);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(residual.data() + batch.logit_rows[i] * config.hidden, config.hidden,
                  selected.data() + i * config.hidden);
    }
    Norm(selected.data(), weights.final_norm, rows, selected.data());
    return vocabulary.Logits(selected.data(), rows, comm, pool);
  }
};

Model::Model(const std::filesystem::path& dir, ModelConfig config, ModelOptions options,
             RankComm& comm, ThreadPool& pool)
    : impl_(std::make_unique<Impl>(dir, std::move(config), std::move(options), comm, pool)) {}
Model::~Model() = default;

std::span<const float> Model::Forward(const ForwardBatch& batch, KvStorage& kv) {
  return impl_->Forward(batch, kv);
}
const ModelConfig& Model::config() const { return impl_->config; }

size_t SymmetricBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                             const MeshShape& shape) {
  const size_t moe = config.has_moe()
                         ? MoeSymmetricBytes(Complete(config, options).moe,
                                             ShapeOf(config, options.max_tokens), shape)
                         : 0;
  return RankComm::BytesPerRank(shape) + moe;
}

}  // namespace switchyard
