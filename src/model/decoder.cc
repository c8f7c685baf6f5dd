#include "model/decoder.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "kernels/streams.h"
#include "model/layers/dispatch_row_hook.h"

namespace switchyard {
namespace {

using schedule::Kind;
using schedule::Operation;
using schedule::Phase;

template <typename Attention>
std::optional<Attention> MakeAttention(const LayerContext& context, AttentionConfig::Kind kind) {
  if (context.config.attention.kind != kind) return std::nullopt;
  return std::make_optional<Attention>(context);
}

std::vector<HiddenInput> MakeHiddenInputs(const LayerContext& context,
                                          const ModelWeights& weights) {
  std::vector<HiddenInput> inputs;
  if (!weights.hidden_input) return inputs;
  inputs.emplace_back(context, *weights.hidden_input);
  for (const ModelWeights::Depth& depth : weights.later_depths)
    inputs.emplace_back(context, depth.hidden_input);
  return inputs;
}

// Each layer is sharded at multiples of its format's unit, so a rank's shards may differ in size.
std::optional<DenseFeedForward> MakeDense(const LayerContext& context,
                                          const ModelWeights& weights) {
  if (std::ranges::none_of(context.config.layers, &LayerConfig::dense)) return std::nullopt;
  int64_t middle = 0;
  for (const LayerWeights& layer : weights.layers) {
    middle = std::max(middle, layer.dense.gate.n);  // 0 in layers without it
  }
  return DenseFeedForward(context, middle);
}

// The last layer that has attention or linear attention.
int LastMixer(const ModelConfig& config) {
  auto layer = static_cast<int>(config.num_layers()) - 1;
  while (layer > 0 && !config.layers[layer].mixer) --layer;
  return layer;
}

// Whether fused ops support the norms of the residual. They do not read several streams.
bool FusesNorms(const ModelConfig& config) {
  return config.hidden % 4 == 0 && !config.layer_norm && !config.streams;
}

}  // namespace

Decoder::Decoder(const LayerContext& context, const ModelWeights& weights,
                 const std::vector<std::unique_ptr<MoeLayer>>& moe, std::function<void()> beat)
    : c_(context),
      weights_(weights),
      moe_(moe),
      beat_(std::move(beat)),
      last_mixer_(LastMixer(context.config)),
      vocabulary_(context, weights),
      hidden_inputs_(MakeHiddenInputs(context, weights)),
      grouped_(MakeAttention<GroupedAttention>(context, AttentionConfig::Kind::kGrouped)),
      latent_(MakeAttention<LatentAttention>(context, AttentionConfig::Kind::kLatent)),
      linear_(context.config.has_linear() ? std::make_optional<LinearAttention>(context)
                                          : std::nullopt),
      compressed_(MakeAttention<CompressedAttention>(context, AttentionConfig::Kind::kCompressed)),
      dense_(MakeDense(context, weights)),
      fused_(FusesNorms(context.config) ? context.device.fused() : nullptr) {
  CHECK(!c_.config.streams || c_.device.streams() != nullptr);
}

int64_t Decoder::ScratchFloats(int64_t max_tokens) const {
  const auto need = [&](const auto& layer) { return layer ? layer->ScratchFloats(max_tokens) : 0; };
  const int64_t hidden_input =
      hidden_inputs_.empty() ? 0 : hidden_inputs_.front().ScratchFloats(max_tokens);
  return std::max({hidden_input, need(grouped_), need(latent_), need(linear_), need(compressed_),
                   need(dense_)});
}

void Decoder::ReserveLogits(std::span<const int64_t> group_rows, Pass& pass) const {
  pass.ReserveLogits(std::ranges::max(group_rows),
                     [&](HeadBuffers& head) { return vocabulary_.Reserve(group_rows, &head); });
}

const char* Decoder::BackendOf(const Operation& operation) const {
  if (operation.kind != Kind::kForward || !moe_[operation.layer]) return nullptr;
  const MoeBackend& backend = moe_[operation.layer]->backend();
  switch (operation.phase) {
    case Phase::kDispatch:
    case Phase::kCombine:
      return backend.exchange_name();
    case Phase::kExperts:
    case Phase::kDown:
      return backend.runner_name();
    default:
      return nullptr;
  }
}

profile::SpanInfo Decoder::Describe(const Operation& operation, const PassRows& rows) const {
  const bool of_logits = operation.kind == Kind::kLogits, of_ids = operation.kind == Kind::kEmbed;
  const bool of_link = operation.kind == Kind::kReceive || operation.kind == Kind::kSend;
  return {.name = operation.kind == Kind::kForward ? Name(operation.phase) : Name(operation.kind),
          .track = profile::Track::kPass,
          .micro_batch = operation.micro_batch,
          .layer = operation.kind == Kind::kForward
                       ? operation.layer + static_cast<int>(c_.config.first_layer)
                       : operation.layer,
          .rows = of_logits ? rows.logit_rows : rows.tokens,
          .columns = of_ids    ? 1
                     : of_link ? c_.config.residual_width()
                               : c_.config.hidden,
          .backend = BackendOf(operation)};
}

void Decoder::Run(std::span<const Operation> program, std::span<Pass* const> passes,
                  std::span<const int64_t> group_logit_rows, const Watch& watch) const {
  Pass& head = *passes.front();
  int64_t selected = 0;  // rows selected for the head so far
  for (const Operation& operation : program) {
    if (operation.kind == Kind::kSample) continue;  // the caller samples, for the whole batch
    Pass& p = *passes[operation.micro_batch];
    if (watch.before) watch.before(p, operation);
    if (p.aborted) {
      Abort(p);
      if (operation.kind == Kind::kLogits) selected += p.rows.logit_rows;
      continue;
    }
    const profile::Span span(watch.profiler,
                             watch.profiler ? Describe(operation, p.rows) : profile::SpanInfo());
    switch (operation.kind) {
      case Kind::kEmbed:
        Embed(p);
        break;
      case Kind::kReceive:
        ReceiveRows(p);
        break;
      case Kind::kSend:
        CompleteResidual(std::span(&passes[operation.micro_batch], 1));
        SendRows(p);
        break;
      case Kind::kForward:
        Forward(p, operation.layer, operation.phase);
        break;
      case Kind::kLogits:
        SelectRows(p, head.selected.data() + selected * c_.config.hidden);
        selected += p.rows.logit_rows;
        break;
      default:
        CHECK(false);
    }
  }
  if (!c_.config.has_head) CompleteResidual(passes);
  if (!c_.config.has_head || std::ranges::all_of(passes, &Pass::aborted)) return;
  const profile::Span span(watch.profiler, {.name = "head",
                                            .track = profile::Track::kPass,
                                            .micro_batch = 0,
                                            .rows = selected,
                                            .columns = c_.config.hidden});
  if (selected > 0 && !KeepsNormed(head) && FinalNorm(head).defined())
    Norm(head.selected.data(), FinalNorm(head), selected, head.selected.data());
  vocabulary_.Logits(group_logit_rows, head.selected.data(), &head.head);
}

void Decoder::RunLink(const Operation& operation, Pass& pass, const Watch& watch) const {
  const profile::Span span(watch.profiler,
                           watch.profiler ? Describe(operation, pass.rows) : profile::SpanInfo());
  if (operation.kind == Kind::kReceive) return ReceiveRows(pass);
  CHECK(operation.kind == Kind::kSend);
  SendRows(pass);
}

void Decoder::Abort(Pass& p) const {
  if (const int layer = std::exchange(p.exchanging, -1); layer >= 0) moe_[layer]->Abort(*p.moe);
}

void Decoder::BeginRows(Pass& p) const {
  p.branch_pending = false;
  // Every rank of the group clears the router faults recorded for the slots. A slot's previous
  // token may have been routed by another rank than its new token.
  if (c_.config.has_moe())
    c_.device.ClearEntries(p.kv->router_faults(), p.rows.slots, p.rows.tokens);
}

void Decoder::Embed(Pass& p) const {
  BeginRows(p);
  if (p.rows.tokens > 0 && c_.config.streams) return EmbedInStreams(p);
  if (p.rows.tokens > 0) vocabulary_.Embed(p, p.residual.data());
  if (p.rows.tokens > 0 && !hidden_inputs_.empty()) hidden_inputs_[p.depth].Join(p);
}

// All streams begin with the row of the embedding, or with the streams that HiddenInput joins.
void Decoder::EmbedInStreams(Pass& p) const {
  const int64_t hidden = c_.config.hidden, width = c_.config.residual_width();
  vocabulary_.Embed(p, p.normed.data());
  if (!hidden_inputs_.empty()) return hidden_inputs_[p.depth].Join(p);
  for (int64_t first = 0; first < width; first += hidden)
    c_.device.CopyRows({.x = p.normed.data(),
                        .ldx = hidden,
                        .y = p.residual.data() + first,
                        .ldy = width,
                        .m = p.rows.tokens,
                        .n = hidden});
}

void Decoder::ReceiveRows(Pass& p) const {
  BeginRows(p);
  if (p.rows.tokens == 0) return;
  CHECK(c_.stage_rows != nullptr);
  c_.stage_rows->Receive(
      {p.residual.data(), static_cast<size_t>(p.rows.tokens * c_.config.residual_width())});
}

void Decoder::SendRows(Pass& p) const {
  CHECK(!p.branch_pending);
  if (p.rows.tokens == 0) return;
  CHECK(c_.stage_rows != nullptr);
  c_.stage_rows->Send(
      {p.residual.data(), static_cast<size_t>(p.rows.tokens * c_.config.residual_width())});
}

void Decoder::Forward(Pass& p, int layer, Phase phase) const {
  const MoeLayer* moe = moe_[layer].get();
  switch (phase) {
    case Phase::kQkv:
      Project(p, layer);
      p.projected = true;
      break;
    case Phase::kAttention:
      beat_();
      if (!std::exchange(p.projected, false)) Project(p, layer);
      Attend(p, layer);
      break;
    case Phase::kRoute:
      Route(p, layer);
      break;
    case Phase::kDispatch:
      if (p.moe_in_stages) moe->BeginDispatch(*p.moe);
      break;
    case Phase::kShared:
      if (c_.config.layers[layer].dense()) {
        dense_->Forward(p, weights_.layers[layer].dense, p.normed.data(), p.branch.data());
      } else if (p.moe_in_stages) {
        moe->RunShared(*p.moe);
      }
      break;
    case Phase::kExperts:
      RunExperts(p, layer);
      break;
    case Phase::kCombine:
      if (p.moe_in_stages) moe->BeginCombine(*p.moe);
      break;
    case Phase::kDown:
      if (p.moe_in_stages) moe->RunDown(*p.moe);
      break;
    case Phase::kFinish:
      Finish(p, layer);
      break;
  }
}

kernels::RoundedRows Decoder::RoundedInput(Pass& p, int layer) const {
  const LayerWeights& w = weights_.layers[layer];
  if (!fused_ || !grouped_ || !w.input_norm.defined()) return {};
  const int64_t tokens = p.rows.tokens;
  kernels::RoundedRows rows = {.form = grouped_->RoundedInput(tokens, w.grouped),
                               .data = p.normed.data()};
  if (rows.form == kernels::RoundedForm::kFp8Groups) {
    rows.scales = p.normed.data() + tokens * c_.config.hidden / 4;  // after the codes
    rows.scale_stride = CeilDiv(tokens, 4) * 4;
  }
  return rows;
}

// Attention is skipped if the group has no tokens. All keys and values are stored before rows
// without logits are dropped (only_logit_rows).
void Decoder::Project(Pass& p, int layer) const {
  const LayerWeights& w = weights_.layers[layer];
  KeepInput(p, layer);
  const bool attends = c_.config.layers[layer].attends();
  if (p.rows.tokens > 0 && c_.config.layers[layer].mixer) {
    const bool joined = p.joined.size() > 0;  // HiddenInput has filled it
    const kernels::RoundedRows rounded = joined ? kernels::RoundedRows{} : RoundedInput(p, layer);
    if (!joined) NormResidual(p, w.input_norm, w.attention_streams, nullptr, rounded);
    const float* x = joined ? p.joined.data() : p.normed.data();
    if (!attends || compressed_) return;  // Attend computes all of these kinds, for all rows
    if (grouped_) grouped_->Project(p, w.grouped, layer, x, rounded);
    if (latent_) latent_->StoreLatents(p, w.latent, layer, x);
  }
  if (DropsRows(p, layer) && !compressed_) {
    if (grouped_ && attends && p.rows.tokens > 0) grouped_->KeepLogitRows(p);
    p.KeepLogitRows();
  }
  if (latent_ && attends && p.rows.tokens > 0)
    latent_->ProjectQueries(p, w.latent, layer, p.normed.data());
}

void Decoder::Attend(Pass& p, int layer) const {
  if (p.rows.tokens > 0 && c_.config.layers[layer].mixer) AttendRows(p, layer);
  if (compressed_ && DropsRows(p, layer)) p.KeepLogitRows();
}

bool Decoder::DropsRows(const Pass& p, int layer) const {
  if (!p.only_logit_rows || !c_.config.has_head) return false;
  return layer == (c_.config.mtp_depths > 1 ? p.depth : last_mixer_);
}

const Tensor& Decoder::FinalNorm(const Pass& p) const {
  return p.depth == 0 ? weights_.final_norm : weights_.later_depths[p.depth - 1].final_norm;
}

void Decoder::AttendRows(Pass& p, int layer) const {
  const LayerWeights& w = weights_.layers[layer];
  float* out = p.branch.data();
  if (c_.config.layers[layer].linear) {
    linear_->Run(p, w.linear, layer, p.normed.data(), out);
  } else {
    if (grouped_) grouped_->Attend(p, w.grouped, layer, out);
    if (latent_) latent_->Attend(p, w.latent, layer, out);
    if (compressed_) compressed_->Run(p, w.compressed, layer, p.normed.data(), out);
  }
  c_.groups.attn_tp->AllReduceSum(out, p.rows.tokens * c_.config.hidden);
  AddBranch(p, w.attention_output_norm);
}

void Decoder::FillRouterRows(Pass& p) const {
  const int64_t hidden = c_.config.hidden, width = hidden + 1;
  float* rows = p.router_rows.data();
  c_.device.CopyRows({.x = p.normed.data(),
                      .ldx = hidden,
                      .y = rows,
                      .ldy = width,
                      .m = p.rows.tokens,
                      .n = hidden});
  c_.device.TokensToFloats(rows + hidden, width, p.rows.ids, p.rows.tokens);
}

MoeTokens Decoder::TokensOf(const Pass& p, int layer) const {
  const float* router_rows = IsLatent() ? p.normed.data() : nullptr;
  if (c_.config.layers[layer].by_token) router_rows = p.router_rows.data();
  return {.group_tokens = p.group_tokens,
          .group_decode_tokens = p.group_decode_tokens,
          .routed_experts = p.routed.empty() ? nullptr : p.routed_rows(),
          .router_faults = {p.kv->router_faults(), p.rows.slots},
          .first_row = p.place.first_row,
          .router_rows = router_rows};
}

void Decoder::Route(Pass& p, int layer) const {
  const MoeLayer& moe = *moe_[layer];
  const MoeTokens tokens = TokensOf(p, layer);
  const Tensor& norm = weights_.layers[layer].post_attention_norm;
  const bool direct = norm.defined() && !IsLatent();  // experts read the normed rows
  const DispatchRowHook hook(direct ? moe.InputRows(*p.moe, tokens) : MoeInputBuffer{},
                             c_.config.hidden);
  if (p.rows.tokens > 0)
    NormResidual(p, norm, weights_.layers[layer].feed_forward_streams,
                 hook.to.rows ? &hook : nullptr);
  if (c_.config.layers[layer].by_token) FillRouterRows(p);
  if (p.rows.tokens > 0 && IsLatent())
    Multiply(weights_.layers[layer].latent_in, p.normed.data(), p.rows.tokens,
             /*accumulate=*/false, p.latent_in.data());
  p.moe_in_stages = moe.StartOneRound(*p.moe, MoeInput(p), tokens, MoeOutput(p, layer));
  if (!p.moe_in_stages) return;
  p.exchanging = layer;
  moe.Route(*p.moe);
}

void Decoder::RunExperts(Pass& p, int layer) const {
  if (const MoeLayer* moe = moe_[layer].get()) {
    if (!p.moe_in_stages) return;
    moe->EndDispatch(*p.moe);
    moe->PrePermute(*p.moe);
    moe->RunExperts(*p.moe);
    moe->PostPermute(*p.moe);
    return;
  }
  if (!c_.config.layers[layer].feed_forward) return;
  const LayerWeights& w = weights_.layers[layer];
  if (p.rows.tokens > 0) NormResidual(p, w.post_attention_norm, w.feed_forward_streams);
  dense_->Forward(p, w.dense, p.normed.data(), p.branch.data());
}

void Decoder::Finish(Pass& p, int layer) const {
  if (const MoeLayer* moe = moe_[layer].get()) {
    if (p.moe_in_stages) {
      moe->EndCombine(*p.moe);
      p.exchanging = -1;
      moe->Scatter(*p.moe);
    } else {
      moe->Forward(*p.moe, MoeInput(p), TokensOf(p, layer), MoeOutput(p, layer));
    }
    StoreRoutedExperts(p, layer);
  }
  if (p.rows.tokens == 0 || !c_.config.layers[layer].feed_forward) return;
  if (moe_[layer] && IsLatent())  // the dense feed-forward has written to `branch`
    Multiply(weights_.layers[layer].latent_out, p.latent_out.data(), p.rows.tokens,
             /*accumulate=*/true, p.branch.data());
  AddBranch(p, weights_.layers[layer].feed_forward_output_norm);
  if (layer > 0 && IsShortcut(layer - 1))
    c_.device.AddInPlace(p.residual.data(), p.shortcut.data(), p.rows.tokens * c_.config.hidden);
}

void Decoder::Multiply(const LinearWeight& w, const float* x, int64_t rows, bool accumulate,
                       float* y) const {
  c_.device.Linear({.x = x,
                    .ldx = w.w.k,
                    .w = w.w,
                    .bias = w.bias_data(),
                    .y = y,
                    .ldy = w.w.n,
                    .m = rows,
                    .accumulate = accumulate});
}

// Copies one layer's [T, top_k] ids into `routed` [T, layers, top_k].
void Decoder::StoreRoutedExperts(Pass& p, int layer) const {
  if (p.routed.empty()) return;
  const int64_t k = c_.config.moe->router.top_k, row = c_.config.num_layers() * k;
  std::vector<int32_t>& ids = p.layer_routed;
  ids.resize(p.rows.tokens * k);
  c_.device.CopyOut(ids.data(), p.routed_rows(), ids.size() * sizeof(int32_t));
  for (int64_t t = 0; t < p.rows.tokens; ++t)
    std::copy_n(ids.data() + t * k, k, p.routed.data() + t * row + layer * k);
}

void Decoder::KeepInput(Pass& p, int64_t layer) const {
  if (!p.inputs_out || p.rows.tokens == 0) return;
  const auto at = std::ranges::find(p.kept_inputs, layer);
  if (at == p.kept_inputs.end()) return;
  const int64_t width = c_.config.residual_width();
  if (p.branch_pending) AddPendingBranch(p);
  c_.device.CopyRows({.x = p.residual.data(),
                      .ldx = width,
                      .y = p.inputs_out + (at - p.kept_inputs.begin()) * width,
                      .ldy = std::ssize(p.kept_inputs) * width,
                      .m = p.rows.tokens,
                      .n = width});
}

// EAGLE heads have no final norm, or their next pass reads the rows before the norm. So does that
// of some MTP layers.
bool Decoder::KeepsNormed(const Pass& p) const {
  const ModelConfig& config = c_.config;
  return p.hidden_out && !config.eagle && !(config.is_mtp && config.mtp_before_norm);
}

void Decoder::SelectRows(Pass& p, float* to) const {
  if (p.branch_pending) AddPendingBranch(p);
  KeepInput(p, c_.config.num_layers());
  const bool normed = KeepsNormed(p);
  const float* rows = FinalRows(p);
  if (normed && p.rows.tokens > 0) Norm(rows, FinalNorm(p), p.rows.tokens, p.hidden_out);
  if (!normed && p.hidden_out) {
    const int64_t width = c_.config.hidden_row_width();
    c_.device.CopyRows({.x = p.residual.data(),
                        .ldx = width,
                        .y = p.hidden_out,
                        .ldy = width,
                        .m = p.rows.tokens,
                        .n = width});
  }
  if (p.rows.logit_rows == 0) return;
  c_.device.CopyRows({.x = normed ? p.hidden_out : rows,
                      .ldx = c_.config.hidden,
                      .rows = p.rows.logit_row,
                      .y = to,
                      .ldy = c_.config.hidden,
                      .m = p.rows.logit_rows,
                      .n = c_.config.hidden});
}

}  // namespace switchyard
