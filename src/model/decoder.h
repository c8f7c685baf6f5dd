// Runs the layers of a model on one rank: executes a schedule over passes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/fused_ops.h"
#include "model/layers/compressed_attention.h"
#include "model/layers/dense_feed_forward.h"
#include "model/layers/embedding_and_head.h"
#include "model/layers/grouped_attention.h"
#include "model/layers/hidden_input.h"
#include "model/layers/latent_attention.h"
#include "model/layers/linear_attention.h"
#include "model/pass.h"
#include "model/weights.h"
#include "moe/layer.h"
#include "profile/profiler.h"
#include "schedule/operation.h"
#include "schedule/serve.h"

namespace switchyard {

// The shape of a step of a model's layers, with one micro-batch, or two if `two_batches` is set.
// With waterfill the shared expert is one of the dispatched experts, so the shape has no shared
// expert. With single-batch overlap, combine starts before the down projection; the caller has
// disabled it for exchanges that cannot return outputs in parts (CombinesInParts).
schedule::ServeShape ServeShapeOf(const ModelConfig& config, const MoeOptions& moe,
                                  bool two_batches);
// The schedule of a step. CHECKs that FindScheduleError finds no fault in it, which holds for all
// shapes.
std::vector<schedule::Operation> CheckedPlan(const schedule::ServeShape& shape);
// The schedules with one micro-batch: one, or with ModelConfig::mtp_depths that of each layer
// alone.
std::vector<std::vector<schedule::Operation>> PlainSchedules(const ModelConfig& config,
                                                             const MoeOptions& moe);

// Borrows weights and MoE layers, which outlive it. All state of a batch is in its pass, so the
// operations of several passes may be interleaved. Every rank executes the same schedule. Used by
// the rank's thread only.
class Decoder {
 public:
  // `moe` [layers]: null for dense layers. May be filled later. `beat` is called once per layer.
  Decoder(const LayerContext& context, const ModelWeights& weights,
          const std::vector<std::unique_ptr<MoeLayer>>& moe, std::function<void()> beat);

  // Floats of scratch that a pass needs.
  int64_t ScratchFloats(int64_t max_tokens) const;
  // Allocates logit rows and head buffers for group_rows [dp] of a whole batch.
  void ReserveLogits(std::span<const int64_t> group_rows, Pass& pass) const;

  // Executes `program` on `passes`, which are usually the micro-batches of one batch. Afterwards
  // the logits of all passes, group_logit_rows [dp] rows, are in the first pass's head buffers.
  // Uses only ops of the device and collectives.
  //
  // The passes may also belong to different batches. `watch.before` is called before each
  // operation. It may set Pass::aborted, before the same operation on every rank. The exchange of
  // an aborted pass is completed, and its other operations are skipped; its logits are undefined. A
  // pipeline stage must not abort passes, since the next stage waits for their rows.
  // Other passes are not affected. If all passes are aborted, the head does not run.
  struct Watch {
    // Records each operation, and the head as "head". Null while no step is recorded.
    profile::Profiler* profiler = nullptr;
    std::function<void(Pass&, const schedule::Operation&)> before;  // or null
  };
  void Run(std::span<const schedule::Operation> program, std::span<Pass* const> passes,
           std::span<const int64_t> group_logit_rows, const Watch& watch) const;
  // Executes `program` while a graph is captured. It has no operation of another stage (RunLink).
  void Run(std::span<const schedule::Operation> program, std::span<Pass* const> passes,
           std::span<const int64_t> group_logit_rows) const {
    Run(program, passes, group_logit_rows, Watch());
  }
  // Executes a kReceive before a captured pass, or a kSend after it. Waits for another stage, so it
  // is not captured itself.
  void RunLink(const schedule::Operation& operation, Pass& pass, const Watch& watch) const;

 private:
  // Completes the exchange of an aborted pass.
  void Abort(Pass& p) const;
  // The backend that runs an operation of a MoE layer; null: none.
  const char* BackendOf(const schedule::Operation& operation) const;
  profile::SpanInfo Describe(const schedule::Operation& operation, const PassRows& rows) const;
  void BeginRows(Pass& p) const;
  void Embed(Pass& p) const;
  void EmbedInStreams(Pass& p) const;
  // Hidden rows from the previous pipeline stage, and to the next one: the residual, which is
  // complete (CompleteResidual), [T, residual_width].
  void ReceiveRows(Pass& p) const;
  void SendRows(Pass& p) const;
  void Forward(Pass& p, int layer, schedule::Phase phase) const;
  void Project(Pass& p, int layer) const;
  void Attend(Pass& p, int layer) const;
  void AttendRows(Pass& p, int layer) const;  // of a layer with a mixer, if the group has rows
  // Whether the pass drops rows without logits in this layer (only_logit_rows): no later layer
  // reads keys of other rows. Compressed attention drops them after its rows are complete.
  bool DropsRows(const Pass& p, int layer) const;
  void Route(Pass& p, int layer) const;
  void RunExperts(Pass& p, int layer) const;
  void Finish(Pass& p, int layer) const;
  // y [rows, w.n] = x [rows, w.k] · wᵀ, or added to y.
  void Multiply(const LinearWeight& w, const float* x, int64_t rows, bool accumulate,
                float* y) const;
  void StoreRoutedExperts(Pass& p, int layer) const;
  // Copies the input of `layer` to Pass::inputs_out, if the pass keeps it
  // (ModelOptions::kept_inputs). The number of layers stands for the output of the last layer.
  void KeepInput(Pass& p, int64_t layer) const;
  // Whether the kept hidden rows are those after the final norm.
  bool KeepsNormed(const Pass& p) const;
  // Copies to `to` the rows whose logits are needed; with KeepsNormed, after the final norm.
  void SelectRows(Pass& p, float* to) const;

  MoeTokens TokensOf(const Pass& p, int layer) const;
  // With LayerConfig::by_token: the router's rows, which are the normed rows and the token ids.
  void FillRouterRows(Pass& p) const;
  bool IsShortcut(int layer) const { return c_.config.layers[layer].shortcut; }
  // Whether a MoE layer's experts read narrower rows (MoeModelConfig::latent).
  bool IsLatent() const { return c_.config.moe->latent > 0; }
  // Where a MoE layer reads the rows of its experts, and where it writes its output.
  const float* MoeInput(const Pass& p) const {
    return IsLatent() ? p.latent_in.data() : p.normed.data();
  }
  float* MoeOutput(Pass& p, int layer) const {
    if (IsLatent()) return p.latent_out.data();
    return IsShortcut(layer) ? p.shortcut.data() : p.branch.data();
  }
  void Norm(const float* x, const Tensor& weight, int64_t rows, float* y,
            const kernels::RowHook* hook = nullptr) const;
  // Writes the norm of the residual stream to `rounded`, or to `normed` if its form is kNone.
  // Without a weight, writes the stream itself to `normed`.
  // `streams`: of the block, with ModelConfig::streams.
  void NormResidual(Pass& p, const Tensor& weight, const StreamWeights& streams,
                    const kernels::RowHook* hook = nullptr,
                    const kernels::RoundedRows& rounded = {}) const;
  // The residual streams → y [T, H], and if `mixes`, the weights of the block's output.
  void Collapse(Pass& p, const StreamWeights& w, bool mixes, float* y) const;
  // The final rows before the norm, [T, H].
  const float* FinalRows(Pass& p) const;
  const Tensor& FinalNorm(const Pass& p) const;
  // Adds the output of a branch, summed over ranks, to the residual stream. If `norm` is defined,
  // the output is normed first. With fused_, the next norm does the addition.
  void AddBranch(Pass& p, const Tensor& norm) const;
  void AddPendingBranch(Pass& p) const;
  // After the layers of a stage without a head: adds the last branch, which the next stage needs.
  void CompleteResidual(std::span<Pass* const> passes) const;
  // The rounded rows that the layer's attention projections read, in the memory of `normed`. Form
  // kNone: the projections read float32 rows.
  kernels::RoundedRows RoundedInput(Pass& p, int layer) const;

  const LayerContext& c_;
  const ModelWeights& weights_;
  const std::vector<std::unique_ptr<MoeLayer>>& moe_;
  const std::function<void()> beat_;
  const int last_mixer_;  // the last layer with a mixer
  const EmbeddingAndHead vocabulary_;
  const std::vector<HiddenInput> hidden_inputs_;  // by depth (ModelConfig::mtp_depths); or empty
  const std::optional<GroupedAttention> grouped_;
  const std::optional<LatentAttention> latent_;
  const std::optional<LinearAttention> linear_;
  const std::optional<CompressedAttention> compressed_;
  const std::optional<DenseFeedForward> dense_;  // for the dense layers
  // Null: the device has no fused ops, or they do not support the norms of the model.
  kernels::FusedOps* const fused_;
};

}  // namespace switchyard
