#include "model/model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "eplb/init_location.h"
#include "kernels/fused_ops.h"
#include "model/device_sampler.h"
#include "model/families/family.h"
#include "model/layers/context.h"
#include "model/layers/dense_feed_forward.h"
#include "model/layers/dispatch_row_hook.h"
#include "model/layers/embedding_and_head.h"
#include "model/layers/grouped_attention.h"
#include "model/layers/latent_attention.h"
#include "model/movable_layers.h"
#include "model/pass.h"
#include "model/rank_device.h"
#include "model/rope.h"
#include "model/weights/placing.h"
#include "model/weights/routers.h"
#include "moe/exchange_memory.h"
#include "moe/layer.h"

namespace switchyard {
namespace {

// Whether the routed experts quantize their input rows to FP8 in groups of 128.
bool UsesFp8GroupActivations(const ModelConfig& config) {
  const LinearSchemes schemes(config.quantization);
  const TensorNames names = FindFamily(config.architecture)->names(config);
  const auto layer = std::ranges::find_if(config.layers, &LayerConfig::moe);
  const auto index = layer - config.layers.begin();
  const std::string experts = fmt::format("{}{}.{}.experts.", names.layers, index, names.moe);
  const std::string one = names.interleaved_experts ? "gate_up_proj" : "0." + names.expert_gate;
  return schemes.Of(experts + one).activation == ActivationFormat::kFp8Group;
}

template <typename Attention>
std::optional<Attention> MakeAttention(const LayerContext& context, AttentionConfig::Kind kind) {
  if (context.config.attention.kind != kind) return std::nullopt;
  return std::make_optional<Attention>(context);
}

// Each layer is sharded at multiples of its format's unit, so a rank's shards may differ in size.
std::optional<DenseFeedForward> MakeDense(const LayerContext& context,
                                          const ModelWeights& weights) {
  if (std::ranges::all_of(context.config.layers, &LayerConfig::moe)) return std::nullopt;
  int64_t middle = 0;
  for (const LayerWeights& layer : weights.layers) {
    middle = std::max(middle, layer.dense.gate.n);  // 0 in MoE layers
  }
  return DenseFeedForward(context, middle);
}

// Sets the options that follow from the model, the backend and the dtype, so that callers cannot
// contradict them.
ModelOptions CompleteOptions(const ModelConfig& config, ModelOptions options,
                             const MeshShape& mesh) {
  options.moe.row_dtype = options.dtype;
  options.load.replicated_shared_expert = ScattersTokens(options.moe, mesh);
  if (options.context_length == 0) options.context_length = config.max_position;
  if (!config.has_moe()) return options;
  options.moe.fp8_group_activations = UsesFp8GroupActivations(config);
  options.load.placements = LoadPlacements(
      {.location = options.moe.init_expert_location,
       .num_layers = config.num_layers(),
       .num_logical = config.moe->router.num_experts,
       .redundant = options.moe.num_redundant_experts,
       .algorithm = options.eplb_algorithm,
       .topology = {
           .ranks = mesh.ep, .nodes = options.moe.nodes, .groups = config.moe->router.num_groups}});
  return options;
}

// Checks that all ranks have the same placements, before weights are loaded. Loading uses as many
// threads as compute, up to kMaxLoadThreads.
ModelOptions CheckPlacements(ModelOptions options, RankComm& comm, const ThreadPool& pool) {
  constexpr int kMaxLoadThreads = 16;  // more threads do not read faster
  CheckSamePlacements(options.load.placements, options.moe.init_expert_location, *comm.tp);
  options.load.threads = std::min(pool.num_threads(), kMaxLoadThreads);
  return options;
}

}  // namespace

struct Model::Impl {
  ModelConfig config;
  ModelOptions options;
  RankComm& comm;
  ThreadPool& pool;
  std::unique_ptr<RankDevice> rank_device;
  kernels::Device& device;
  const RankGroups& groups;
  ModelWeights weights;
  Tensor cos_sin;  // [context_length, rotary_dim]
  const LayerContext context;
  EmbeddingAndHead vocabulary;
  std::optional<GroupedAttention> grouped;
  std::optional<LatentAttention> latent;
  std::optional<DenseFeedForward> dense;  // for the dense layers
  std::shared_ptr<MoeBackend> moe_backend;
  std::vector<std::unique_ptr<MoeLayer>> moe;  // one for each layer; null for dense ones
  std::unique_ptr<MovableLayers> movable;      // or null
  kernels::FusedOps* fused;                    // or null
  DeviceSampler drawing;
  Pass pass;

  Impl(const std::filesystem::path& dir, ModelConfig model_config, ModelOptions model_options,
       RankComm& rank_comm, ThreadPool& threads)
      : config(std::move(model_config)),
        options(CheckPlacements(
            CompleteOptions(config, std::move(model_options), rank_comm.mesh.shape()), rank_comm,
            threads)),
        comm(rank_comm),
        pool(threads),
        rank_device(MakeRankDevice(config, options, comm, pool)),
        device(rank_device->device()),
        groups(rank_device->groups()),
        weights(LoadWeights(dir, config, comm.mesh, options.load)),
        cos_sin(device.Place(BuildCosSin(config.rope, options.context_length))),
        context{config, comm.mesh, cos_sin, groups, device},
        vocabulary(context, weights),
        grouped(MakeAttention<GroupedAttention>(context, AttentionConfig::Kind::kGrouped)),
        latent(MakeAttention<LatentAttention>(context, AttentionConfig::Kind::kLatent)),
        dense(MakeDense(context, weights)),
        moe(config.layers.size()),
        fused(config.hidden % 4 == 0 ? device.fused() : nullptr),
        pass(/*index=*/0, context, options.max_tokens, ScratchFloats()) {
    FinishRouters(config, &weights);
    UploadWeights(device, weights);
    if (config.has_moe()) MakeMoeLayers(dir);
  }

  int64_t ScratchFloats() const {
    const auto need = [&](const auto& layer) {
      return layer ? layer->ScratchFloats(options.max_tokens) : 0;
    };
    return std::max({need(grouped), need(latent), need(dense)});
  }

  void MakeMoeLayers(const std::filesystem::path& dir) {
    moe_backend = rank_device->MakeMoe(options, MoeShapeOf(config, options.max_tokens));
    moe_backend->Observe(options.observer);
    moe_backend->ChooseReplicasBy(options.chooser);
    MoeLayerConfig layer_config{.hidden = config.hidden,
                                .router = config.moe->router,
                                .activation = config.activation,
                                .swiglu_alpha = config.swiglu_alpha,
                                .swiglu_limit = config.swiglu_limit};
    for (size_t i = 0; i < moe.size(); ++i) {
      if (!config.layers[i].moe) continue;
      layer_config.placement = options.load.placements[i];
      layer_config.layer = static_cast<int>(i);
      moe[i] = std::make_unique<MoeLayer>(layer_config, std::exchange(weights.layers[i].moe, {}),
                                          moe_backend);
      if (!device.is_cpu()) weights.layers[i].owned.clear();  // the layer has copied them
    }
    pass.moe = moe_backend->MakeState(pass.index());
    if (options.movable_experts) MakeMovable(dir);
  }

  void MakeMovable(const std::filesystem::path& dir) {
    if (!moe_backend->movable()) throw Invalid("experts move on CPUs only: want --device cpu");
    std::map<int, MoeLayer*> layers;
    for (size_t i = 0; i < moe.size(); ++i)
      if (moe[i]) layers[static_cast<int>(i)] = moe[i].get();
    movable = std::make_unique<MovableLayers>(
        std::move(layers), std::make_unique<ExpertLoader>(dir, config, comm.mesh, options.load),
        comm.mesh);
  }

  void Norm(const float* x, const Tensor& weight, int64_t rows, float* y,
            const kernels::RowHook* hook = nullptr) {
    device.RmsNorm({.x = x,
                    .ldx = config.hidden,
                    .weight = weight.data<float>(),
                    .y = y,
                    .ldy = config.hidden,
                    .m = rows,
                    .n = config.hidden,
                    .eps = config.norm_eps,
                    .hook = hook});
  }

  // Normalises the residual stream into `normed`, or, rounded to bfloat16, into its memory.
  void NormResidual(Pass& p, const Tensor& weight, const kernels::RowHook* hook = nullptr,
                    bool bf16_rows = false) {
    const int64_t tokens = p.rows.tokens;
    if (!fused) return Norm(p.residual.data(), weight, tokens, p.normed.data(), hook);
    fused->AddNorm({.x = p.residual.data(),
                    .add = p.branch_pending ? p.branch.data() : nullptr,
                    .weight = weight.data<float>(),
                    .y = bf16_rows ? nullptr : p.normed.data(),
                    .bf16_rows = bf16_rows ? p.normed.data() : nullptr,
                    .m = tokens,
                    .n = config.hidden,
                    .eps = config.norm_eps});
    p.branch_pending = false;
  }

  // Adds the sum over ranks to the residual stream; fused into the next norm if the device has a
  // fused op.
  void AddBranch(Pass& p) {
    p.branch_pending = fused != nullptr;
    if (!p.branch_pending) AddPendingBranch(p);
  }
  void AddPendingBranch(Pass& p) {
    p.branch_pending = false;
    device.AddInPlace(p.residual.data(), p.branch.data(), p.rows.tokens * config.hidden);
  }

  // Attention, within the attention group; skipped if the group has no tokens.
  void Attend(Pass& p, int64_t layer) {
    const int64_t tokens = p.rows.tokens;
    if (tokens == 0) return;
    const GroupedAttentionWeights& w = weights.layers[layer].grouped;
    const bool bf16_rows = fused && grouped && grouped->TakesBf16Input(tokens, w);
    NormResidual(p, weights.layers[layer].input_norm, nullptr, bf16_rows);
    const float* x = p.normed.data();
    if (grouped) grouped->Forward(p, w, layer, x, bf16_rows ? x : nullptr, p.branch.data());
    if (latent) latent->Forward(p, weights.layers[layer].latent, layer, x, p.branch.data());
    groups.attn_tp->AllReduceSum(p.branch.data(), tokens * config.hidden);
    AddBranch(p);
  }

  void FeedForward(Pass& p, int64_t layer) {
    const Tensor& norm = weights.layers[layer].post_attention_norm;
    if (moe[layer]) {
      const MoeTokens tokens{.group_tokens = p.group_tokens,
                             .group_decode_tokens = p.group_decode_tokens,
                             .routed_experts = p.routed.empty() ? nullptr : p.routed_rows(),
                             .router_faults = {p.kv->router_faults(), p.rows.slots}};
      const DispatchRowHook hook(moe[layer]->InputRows(*p.moe, tokens), config.hidden);
      if (p.rows.tokens > 0) NormResidual(p, norm, hook.to.rows ? &hook : nullptr);
      moe[layer]->Forward(*p.moe, p.normed.data(), tokens, p.branch.data());
      StoreRoutedExperts(p, layer);
    } else {
      if (p.rows.tokens > 0) NormResidual(p, norm);
      dense->Forward(p, weights.layers[layer].dense, p.normed.data(), p.branch.data());
    }
    if (p.rows.tokens > 0) AddBranch(p);
  }

  // Copies one layer's [T, top_k] ids into `routed` [T, layers, top_k].
  void StoreRoutedExperts(Pass& p, int64_t layer) {
    if (p.routed.empty()) return;
    const int64_t k = config.moe->router.top_k, row = config.num_layers() * k;
    std::vector<int32_t>& ids = p.layer_routed;
    ids.resize(p.rows.tokens * k);
    device.CopyOut(ids.data(), p.routed_rows(), ids.size() * sizeof(int32_t));
    for (int64_t t = 0; t < p.rows.tokens; ++t)
      std::copy_n(ids.data() + t * k, k, p.routed.data() + t * row + layer * k);
  }

  // From token ids to logits; uses only ops of the device and collectives.
  void RunLayers(Pass& p) {
    p.branch_pending = false;
    // On every rank of the group: another rank may have routed a slot's previous token.
    if (config.has_moe()) device.ClearEntries(p.kv->router_faults(), p.rows.slots, p.rows.tokens);
    if (p.rows.tokens > 0) vocabulary.Embed(p, p.residual.data());
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      comm.memory->Beat();
      Attend(p, layer);
      FeedForward(p, layer);
    }
    if (p.branch_pending) AddPendingBranch(p);
    const int64_t rows = p.rows.logit_rows;
    if (rows > 0) {
      device.CopyRows({.x = p.residual.data(),
                       .ldx = config.hidden,
                       .rows = p.rows.logit_row,
                       .y = p.selected.data(),
                       .ldy = config.hidden,
                       .m = rows,
                       .n = config.hidden});
      Norm(p.selected.data(), weights.final_norm, rows, p.selected.data());
    }
    vocabulary.Logits(p, p.selected.data());
  }

  // Pads decode batches to a recorded size; runs all other batches as they are.
  std::span<const float> Forward(Pass& p, const ForwardBatch& batch, KvStorage& kv) {
    const int64_t recorded = RecordedTokens();
    const bool record = recorded > 0 && IsPlainDecode(batch, recorded);
    p.Begin(record ? p.padded.Pad(batch, kv.num_pages(), kv.page_size()) : batch, kv);
    ReserveLogits(p);
    device.Run(record ? p.RecordingKey(p.rows.tokens) : 0, [&] { RunLayers(p); });
    const float* logits = p.head.logits.data();
    const int64_t wanted = std::ssize(batch.logit_rows);
    if (!batch.draws.empty()) {
      CHECK_EQ(std::ssize(batch.draws), wanted);
      p.drawn = drawing.Draw(*rank_device, logits, batch.draws, config.vocab_size);
      return {};
    }
    return ToHost(p, logits, wanted * config.vocab_size);
  }

  // The most rows of a recorded pass; 0: recording is disabled.
  int64_t RecordedTokens() const {
    if (!options.gpu || !options.gpu->graphs) return 0;
    return std::min(options.gpu->graph_max_tokens, options.max_tokens);
  }

  // Sized by the largest group's rows, so that all groups record in the same pass, as NCCL
  // requires. Reserves the maximum of recorded passes at once, so that no recording is lost.
  void ReserveLogits(Pass& p) {
    std::vector<int64_t> rows = p.group_logit_rows;  // [dp]
    for (int64_t& count : rows) count = std::max(count, RecordedTokens());
    p.ReserveLogits(std::ranges::max(rows),
                    [&](HeadBuffers& head) { return vocabulary.Reserve(rows, &head); });
  }

  std::span<const float> ToHost(Pass& p, const float* logits, int64_t count) {
    if (device.is_cpu()) return {logits, static_cast<size_t>(count)};
    p.host_logits.resize(count);
    device.CopyOut(p.host_logits.data(), logits, count * sizeof(float));
    return p.host_logits;
  }
};

Model::Model(const std::filesystem::path& dir, ModelConfig config, ModelOptions options,
             RankComm& comm, ThreadPool& pool)
    : impl_(std::make_unique<Impl>(dir, std::move(config), std::move(options), comm, pool)) {}
Model::~Model() = default;

KvStorage Model::MakeCache(int64_t num_pages, int32_t page_size, DType dtype) {
  Impl& m = *impl_;
  if (m.device.is_cpu()) return KvStorage(m.config, m.comm.mesh, num_pages, page_size, dtype);
  return KvStorage(m.config, m.comm.mesh, num_pages, page_size, dtype, m.device);
}
std::span<const float> Model::Forward(const ForwardBatch& batch, KvStorage& kv) {
  return impl_->Forward(impl_->pass, batch, kv);
}
std::span<const int32_t> Model::routed_experts() const { return impl_->pass.routed; }
std::vector<int32_t> Model::RouterFaults(const ForwardBatch& batch, const KvStorage& kv) const {
  return kv.RouterFaultsOf(batch.sequences, impl_->device);
}
Communicator& Model::attention_group() const { return *impl_->comm.attn_tp; }
bool Model::draws() const { return impl_->rank_device->draws(); }
std::span<const int32_t> Model::drawn() const { return impl_->pass.drawn; }
MovableExperts* Model::movable_experts() { return impl_->movable.get(); }
const ModelConfig& Model::config() const { return impl_->config; }

size_t SymmetricBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                             const MeshShape& shape) {
  const size_t moe =
      config.has_moe() && !options.gpu
          ? MoeSymmetricBytes(CompleteOptions(config, options, shape).moe,
                              MoeShapeOf(config, options.max_tokens), shape, options.backends.get())
          : 0;
  return RankComm::BytesPerRank(shape) + moe;
}

size_t GpuBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                       const MeshShape& shape) {
  return CudaPeerBytes(config, CompleteOptions(config, options, shape), shape);
}

std::string DescribeExchangeMemory(const ModelConfig& config, const ModelOptions& options,
                                   const MeshShape& shape) {
  return DescribeExchangeMemory(CompleteOptions(config, options, shape).moe,
                                MoeShapeOf(config, options.max_tokens), shape,
                                options.backends.get());
}

size_t WeightBytesPerRank(const ModelConfig& config, const ModelOptions& options,
                          const Mesh& mesh) {
  LoadOptions load = CompleteOptions(config, options, mesh.shape()).load;
  if (options.gpu) {
    load.gpu_plain_dtype = options.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
    load.packs_experts = options.gpu->packs_experts && options.dtype != DType::kF32;
  }
  return WeightBytesPerRank(config, mesh, load);
}

}  // namespace switchyard
