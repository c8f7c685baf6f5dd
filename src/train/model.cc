#include "train/model.h"

#include <algorithm>

#include "core/check.h"
#include "core/error.h"
#include "model/rope.h"

namespace switchyard::train {
namespace {

TensorNames KnownNames(const ModelConfig& config) {
  if (FindFamily(config.architecture) == nullptr)
    throw Invalid("unknown architecture {}", config.architecture);
  return NamesOf(config);
}

void CheckTrainable(const ModelConfig& c, const TensorNames& names, const LossOptions& options) {
  const auto refuse = [&](bool is, std::string_view what) {
    if (is) throw Invalid("{}: {} cannot be trained", c.architecture, what);
  };
  refuse(c.attention.qkv_bias || c.attention.output_bias, "an attention with biases");
  refuse(c.attention.kind == AttentionConfig::Kind::kCompressed,
         "an attention to compressed entries");
  refuse(std::ranges::any_of(c.layers, &LayerConfig::sinks), "an attention with sinks");
  refuse(c.attention.kind == AttentionConfig::Kind::kGrouped &&
             c.attention.value_dim() != c.attention.head_dim,
         "an attention whose values are not as wide as its keys");
  refuse(c.attention.value_scale != 1.0f, "an attention with scaled values");
  refuse(std::ranges::any_of(c.layers, [](const LayerConfig& l) { return l.kv_heads > 0; }),
         "an attention whose layers differ in KV heads");
  refuse(c.window_rope.has_value(), "an attention with two rotary embeddings");
  refuse(c.activation != kernels::Activation::kSwiGlu, "an activation other than SwiGLU");
  refuse(c.moe && c.moe->shared_gate, "a shared expert with a gate");
  refuse(names.router_bias, "a router with a bias on its logits");
  refuse(names.interleaved_experts || names.stacked_experts || names.transposed_experts,
         "a checkpoint with stacked experts");
  refuse(!names.qkv.empty(), "a checkpoint with q, k and v in one linear");
  refuse(!c.tensor_prefix.empty(), "the decoder of a multimodal checkpoint");
  refuse(c.layer_norm, "a model with LayerNorm");
  refuse(c.head_bias, "a head with a bias");
  refuse(c.embedding_scale != 1.0f || c.logit_scale != 1.0f,
         "a model with scaled embedding or logits");
  refuse(names.input_norm.empty() || !names.attention_output_norm.empty(),
         "a model with norms of the layers' outputs");
  refuse(c.attention.gate || c.attention.norm_after_rope || c.attention.query_scale_beta != 0.0,
         "an attention with a gate, scaled queries or norms after the rotary embedding");
  refuse(std::ranges::any_of(c.layers, [](const LayerConfig& l) { return !l.rope; }),
         "an attention without rotary embedding");
  refuse(c.moe && c.moe->router.scoring == RouterConfig::Scoring::kSparseMixer,
         "a SparseMixer router");
  refuse(c.moe && c.moe->router.scales_input, "a router that scales the inputs of experts");
  refuse(std::ranges::any_of(c.layers, [](const LayerConfig& l) { return l.chunk > 0; }),
         "an attention within chunks");
  refuse(names.blocks > 1 || c.has_shortcuts(), "a layer with several attention blocks");
  refuse(c.moe && c.moe->router.zero_experts > 0, "a router of experts without computation");
  refuse(c.attention.index_topk > 0, "an attention to keys that an indexer selects");
  refuse(options.mtp_layers > 0 && !names.mtp.empty(),
         "an MTP module whose tensors are not those of a further layer");
  refuse(names.correction_bias_row, "a router with a selection bias of one row");
  refuse(!c.quantization.method.empty(), "a quantized checkpoint");
  refuse(c.pooling.has_value(), "an embedding model or a classifier");
  refuse(options.mtp_layers < 0, "a negative number of MTP modules");
  if (options.mtp_only && options.mtp_layers == 0)
    throw Invalid("{}: there is no MTP module to train; add one with --mtp-layers", c.architecture);
}

StageRange Bounded(StageRange stage, const ModelConfig& config) {
  if (stage.last_layer < 0) stage.last_layer = config.num_layers();
  CHECK(stage.first_layer >= 0 && stage.first_layer < stage.last_layer);
  CHECK(stage.last_layer <= config.num_layers());
  return stage;
}

}  // namespace

template <typename T>
Model<T>::Model(const ModelConfig& config, const LossOptions& options, const LayerRanks& ranks,
                ThreadPool& pool, const StageRange& stage, ProductDtype products,
                const BackwardOptions& backward, const LoraOptions& lora)
    : config_(config),
      options_(options),
      stage_(Bounded(stage, config)),
      main_layers_(stage_.last_layer - stage_.first_layer),
      hidden_(config.hidden),
      tp_(ranks.tp),
      pool_(pool),
      backward_(backward),
      set_(products, lora) {
  const TensorNames names = KnownNames(config_);
  CheckTrainable(config_, names, options_);
  const Tensor table = BuildCosSin(config_.rope, config_.max_position);
  cos_sin_.assign(table.span<float>().begin(), table.span<float>().end());

  const std::vector<int64_t> table_shape = {config_.vocab_size, hidden_};
  const Cut vocabulary = Cut::Outputs(tp_, config_.vocab_size);
  // The last stage needs the embedding.
  const bool at_end = config_.tie_embeddings || options_.mtp_layers > 0;
  if (stage_.first || (stage_.last && at_end)) {
    embedding_ = set_.Add(names.embedding, table_shape, false, vocabulary);
    embedding_->on_two_stages = at_end && !(stage_.first && stage_.last);
  }
  for (int64_t i = stage_.first_layer; i < stage_.last_layer; ++i) AddLayer(i, names, ranks);
  if (!stage_.last) {
    Freeze();
    return;
  }
  for (int64_t d = 0; d < options_.mtp_layers; ++d)
    AddLayer(config_.num_layers() + d, names, ranks);
  final_norm_ = set_.Add(names.final_norm, {hidden_});
  head_.tp = tp_;
  head_.head = Linear<T>::Of(
      config_.tie_embeddings ? embedding_ : set_.Add(names.head, table_shape, false, vocabulary),
      products);
  Freeze();
}

template <typename T>
void Model<T>::Freeze() {
  const bool lora = set_.lora().rank > 0;
  CHECK(!options_.mtp_only || (stage_.first && stage_.last && !lora));
  for (Parameter<T>& p : set_.all()) {
    const auto owns = [&](const std::string& prefix) { return p.name.starts_with(prefix); };
    const bool frozen = lora                ? !IsAdapter(p.name)
                        : options_.mtp_only ? std::ranges::none_of(mtp_prefixes_, owns)
                                            : false;
    if (frozen) std::vector<T>().swap(p.gradient);
  }
}

// `index`: index of the layer in the checkpoint, where the layers of MTP modules follow those of
// the model.
template <typename T>
void Model<T>::AddLayer(int64_t index, const TensorNames& names, const LayerRanks& ranks) {
  const std::string prefix = fmt::format("{}{}.", names.layers, index);
  const bool mtp = index >= config_.num_layers();
  const auto norm = [&](const std::string& name) {
    return set_.Add(prefix + name + ".weight", {hidden_});
  };
  if (mtp) {
    mtp_prefixes_.push_back(prefix);
    auto* const embedding_norm = norm("enorm");
    auto* const hidden_norm = norm("hnorm");
    mtp_.push_back(
        {.embedding_norm = embedding_norm,
         .hidden_norm = hidden_norm,
         .projection = Linear<T>::Of(set_.Add(prefix + "eh_proj.weight", {hidden_, 2 * hidden_}),
                                     set_.products()),
         .final_norm = nullptr});
  }
  const bool moe = mtp ? config_.has_moe() : config_.layers[index].moe;
  layers_.push_back(std::make_unique<DecoderLayer<T>>(
      AttentionParts<T>{.config = config_,
                        .names = names,
                        .prefix = prefix,
                        .window = mtp ? 0 : config_.layers[index].window,
                        .cos_sin = cos_sin_.data(),
                        .parameters = set_,
                        .tp = tp_},
      moe, ranks, backward_));
  if (mtp) mtp_.back().final_norm = norm("shared_head.norm");
  moe_index_.push_back(moe ? static_cast<int64_t>(loads_.size()) : -1);
  if (moe) loads_.emplace_back(config_.moe->router.num_experts);
}

template <typename T>
std::vector<Parameter<T>*> Model<T>::parameters() {
  std::vector<Parameter<T>*> all;
  for (Parameter<T>& p : set_.all()) all.push_back(&p);
  return all;
}

template <typename T>
std::vector<std::pair<std::string, const Parameter<T>*>> Model<T>::aliases() const {
  const TensorNames names = NamesOf(config_);
  std::vector<std::pair<std::string, const Parameter<T>*>> all;
  for (size_t d = 0; d < mtp_.size(); ++d) {
    const std::string prefix = fmt::format("{}{}.", names.layers, config_.num_layers() + d);
    all.emplace_back(prefix + "embed_tokens.weight", embedding_);
    all.emplace_back(prefix + "shared_head.head.weight", head_.head.weight);
  }
  return all;
}

template <typename T>
int64_t Model<T>::DepthOf(int64_t layer) const {
  return layer < main_layers_ ? 0 : layer - main_layers_ + 1;
}

template <typename T>
NormShape<T> Model<T>::Norm(int64_t rows) const {
  return {.m = rows, .n = hidden_, .ldx = hidden_, .eps = static_cast<T>(config_.norm_eps)};
}

template <typename T>
void Model<T>::Forward(int64_t layer, Phase phase, Pass<T>* pass) {
  const int64_t depth = DepthOf(layer);
  DepthState<T>& d = pass->depths[depth];
  const int64_t m = MyRows(d);
  if (phase == Phase::kAttention && FirstOfDepth(layer)) {
    d.stream.resize(m * hidden_);
    if (depth == 0) {
      EmbedRows(d, d.stream.data());
    } else {
      Join(depth, pass);
    }
  }
  if (phase == Phase::kAttention && has_experts(layer)) GiveExperts(layer, pass);
  layers_[layer]->Forward(phase, IsFrozen(depth) ? no_losses_ : options_, pass->step.tokens,
                          {d.rows, pass->layers[layer], d.stream, pool_, spares_}, &pass->losses);
  if (phase == Phase::kAttention && moe_index_[layer] >= 0) {
    const RouterState<T>& router = pass->layers[layer].moe.router;
    std::vector<float>& sums = loads_[moe_index_[layer]];
    for (size_t e = 0; e < router.loads.size(); ++e) sums[e] += router.loads[e];
    replay_.replayed += static_cast<double>(router.replayed);
    replay_.agreed += static_cast<double>(router.agreed);
  }
  if (phase == Phase::kFinish && LastOfDepth(layer)) {
    d.last = d.stream;
    d.final.resize(m * hidden_);
    RmsNorm(Norm(m), d.last.data(), FinalNorm(depth)->value.data(), d.final.data(), pool_);
  }
}

template <typename T>
void Model<T>::Heads(bool backward, Pass<T>* pass) {
  if (!stage_.last) return;
  for (size_t depth = 0; depth < pass->depths.size(); ++depth) {
    if (IsFrozen(static_cast<int64_t>(depth))) continue;
    DepthState<T>& d = pass->depths[depth];
    const int64_t n = d.rows.rows();
    double scale = 1.0 / pass->step.targets;
    if (depth > 0) scale *= options_.mtp_weight / static_cast<double>(options_.mtp_layers);
    if (backward) d.dfinal.resize(d.final.size());
    const GatheredRows<T> final(tp_, d.final.data(), n, hidden_);
    PartialRows<T> dfinal(tp_, d.dfinal.data(), n, hidden_);
    const double loss = head_.Run(final.data(), d.targets, static_cast<T>(scale),
                                  backward ? dfinal.data() : nullptr, pool_);
    if (backward) dfinal.Scatter();
    (depth == 0 ? pass->losses.main : pass->losses.mtp) += loss * scale;
  }
}

template <typename T>
void Model<T>::Backward(int64_t layer, Phase phase, Pass<T>* pass) {
  const int64_t depth = DepthOf(layer);
  if (IsFrozen(depth)) return;
  DepthState<T>& d = pass->depths[depth];
  const int64_t m = MyRows(d);
  if (phase == Phase::kFinish && LastOfDepth(layer)) {
    d.stream.resize(m * hidden_);
    Parameter<T>* norm = FinalNorm(depth);
    RmsNormGradient(Norm(m), d.last.data(), norm->value.data(), d.dfinal.data(), d.stream.data(),
                    false, norm->gradient_data(), pool_);
  }
  layers_[layer]->Backward(phase, {d.rows, pass->layers[layer], d.stream, pool_, spares_});
  if (phase != Phase::kAttention || !FirstOfDepth(layer)) return;
  if (depth == 0) {
    if (!embedding_->gradient.empty()) EmbedRowsBackward(d, d.stream.data());
  } else {
    JoinBackward(depth, pass);
  }
}

template <typename T>
void Model<T>::Weights(int64_t layer, Pass<T>* pass) {
  CHECK(backward_.separate_weights);
  const int64_t depth = DepthOf(layer);
  if (IsFrozen(depth)) return;
  DepthState<T>& d = pass->depths[depth];
  layers_[layer]->Weights({d.rows, pass->layers[layer], d.stream, pool_, spares_});
}

template <typename T>
void Model<T>::Forward(Pass<T>* pass) {
  for (int64_t layer = 0; layer < layers(); ++layer) {
    for (const Phase phase : {Phase::kAttention, Phase::kDispatch, Phase::kShared, Phase::kExperts,
                              Phase::kCombine, Phase::kFinish}) {
      Forward(layer, phase, pass);
    }
  }
}

template <typename T>
void Model<T>::Backward(Pass<T>* pass) {
  for (int64_t layer = layers() - 1; layer >= 0; --layer) {
    for (const Phase phase : {Phase::kFinish, Phase::kCombine, Phase::kShared, Phase::kExperts,
                              Phase::kDispatch, Phase::kAttention}) {
      Backward(layer, phase, pass);
    }
    if (backward_.separate_weights) Weights(layer, pass);
  }
}

template <typename T>
Losses Model<T>::Run(const Batch& batch, const StepSize& step, bool backward, Pass<T>* pass) {
  Begin(batch, step, pass);
  Forward(pass);
  Heads(backward, pass);
  if (backward) Backward(pass);
  return pass->losses;
}

template <typename T>
ActivationCounts Model<T>::CountActivations(int64_t rows) const {
  ActivationCounts counts;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const LossOptions& losses =
        IsFrozen(DepthOf(static_cast<int64_t>(layer))) ? no_losses_ : options_;
    counts.AddLayer(layers_[layer]->Count(rows, losses.balance.any(), pool_));
  }
  // Rows of DepthState: stream; last, final and dfinal; for a module embedded, previous and joined.
  const int64_t mine = tp_.Mine(rows).size() * hidden_;
  counts.kept += mine * (stage_.last ? 4 + 8 * std::ssize(mtp_) : 1);
  return counts;
}

template <typename T>
void Model<T>::ClearGradients() {
  for (Parameter<T>& p : set_.all()) std::fill(p.gradient.begin(), p.gradient.end(), T{0});
}

template <typename T>
void Model<T>::ClearLoads() {
  for (std::vector<float>& loads : loads_) std::fill(loads.begin(), loads.end(), 0.0f);
  replay_ = {};
}

template <typename T>
void Model<T>::MoveBiases(std::span<const std::vector<float>> loads, double gamma) {
  CHECK_EQ(loads.size(), loads_.size());
  for (int64_t i = 0; i < layers(); ++i) {
    if (moe_index_[i] < 0 || IsFrozen(DepthOf(i))) continue;
    Parameter<T>* bias = layers_[i]->moe()->router().bias();
    if (bias != nullptr) MoveBias<T>(loads[moe_index_[i]], gamma, bias->value);
  }
}

template class Model<float>;
template class Model<double>;

}  // namespace switchyard::train
