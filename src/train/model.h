// Trainable language model: parameters, losses and their gradients.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "model/config.h"
#include "train/batch.h"
#include "train/layers/decoder_layer.h"
#include "train/layers/head.h"
#include "train/layers/lora.h"
#include "train/layers/pointwise.h"
#include "train/layers/recompute.h"
#include "train/parameter.h"

namespace switchyard::train {

// The rows of one prediction depth: depth 0 is the model, depth d the d-th MTP module. At depth d,
// each sequence is d tokens shorter. Row i of a sequence combines token i + d with the hidden state
// that predicts this token. A depth has n rows, of which this rank holds m (TensorGroup::Mine).
template <typename T>
struct DepthState {
  RowLayout rows;
  std::vector<int32_t> tokens, targets;  // [n]
  std::vector<int32_t> source;           // [n] row of the previous depth; empty for depth 0
  std::vector<int32_t> experts;          // Batch::experts; empty for MTP modules
  // [m, H] hidden states between layers; in the backward pass, their gradient. Pipeline stages send
  // and receive this buffer of depth 0. Before a stage's first Forward it has the output of the
  // previous stage. Before the stage's first Backward it has the gradient of the next stage.
  std::vector<T> stream;
  // [m, H] each. last: the last layer's output; final: its norm; dfinal: the gradient of `final`.
  std::vector<T> last, final, dfinal;
  // [m, H] only MTP: the two inputs of a module before their norms.
  std::vector<T> embedded, previous;
  std::vector<T> joined;  // [m, 2 H] only MTP: both inputs after their norms, concatenated
};

// The activations of one micro-batch from Begin to the end of its backward pass. Any number of
// micro-batches may be in flight. A Pass can be reused for the next micro-batch and then keeps its
// memory.
template <typename T>
struct Pass {
  StepSize step;
  std::vector<DepthState<T>> depths;  // [1 + MTP modules]
  std::vector<LayerState<T>> layers;  // layers of the model, then layers of the MTP modules
  Losses losses;
};

// Owned by a rank; used by the rank's thread only. Every rank of the exchange makes the same calls
// in the same order, with its own batches, including empty ones.
//
// Experts are partitioned over the ranks of the exchange. Attention heads, widths of dense layers
// and shared experts, and the vocabulary are partitioned over the ranks of a tensor-parallel group,
// which all have the same batch. All other tensors are replicated. A pipeline stage holds a range
// of the layers, and its ranks call only the phases of these layers. Every stage has the same
// batches. After the last micro-batch of a step, SumGradients (train/gradients.h) sums partial
// gradients over ranks.
template <typename T>
class Model {
 public:
  // Error kInvalid if config requires an unsupported feature: biases, sinks, a gate of the shared
  // expert, other activations, quantized weights. The members of `ranks` and the pool are borrowed.
  // `products`: dtype of all linear layers, attention and the head; routers stay float32.
  // `backward`: how the backward pass runs; results have the same bits. `lora`: adapters, which are
  // then the only parameters with gradients. Its targets are some of LoraTargets.
  Model(const ModelConfig& config, const LossOptions& options, const LayerRanks& ranks,
        ThreadPool& pool, const StageRange& stage = {},
        ProductDtype products = ProductDtype::kFloat32, const BackwardOptions& backward = {},
        const LoraOptions& lora = {});

  std::vector<Parameter<T>*> parameters();
  // Additional names under which checkpoints store a parameter (the MTP modules' embedding and
  // head).
  std::vector<std::pair<std::string, const Parameter<T>*>> aliases() const;
  // Loads a checkpoint in Hugging Face layout, with this rank's experts only. With mtp_only, MTP
  // modules that the checkpoint lacks keep their present weights. Errors: those of LoadWeights.
  void Load(const std::filesystem::path& dir);
  // Sets normally distributed weights that depend only on seed, tensor name and element index.
  // Norms are set to 1, biases to 0.
  void Initialise(uint64_t seed, double deviation);

  // Number of layers of this stage, including MTP modules.
  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  const StageRange& stage() const { return stage_; }
  bool has_experts(int64_t layer) const { return moe_index_[layer] >= 0; }
  // Processes a micro-batch phase by phase: Begin; Forward of every phase of every layer in
  // ascending order; Heads. If Heads was called with `backward`, Backward follows in descending
  // order. After that, the gradients of the micro-batch have been added to those of the parameters.
  // Begin checks sizes, tokens and experts of the batch (kInvalid). On stages other than the first,
  // Begin allocates the stream to be received. Heads has an effect on the last stage only.
  void Begin(const Batch& batch, const StepSize& step, Pass<T>* pass);
  void Forward(int64_t layer, Phase phase, Pass<T>* pass);
  void Heads(bool backward, Pass<T>* pass);
  void Backward(int64_t layer, Phase phase, Pass<T>* pass);
  // Only with separate weight gradients: call it after all phases of the layer's backward pass, for
  // one micro-batch after the other, before the Pass is used again.
  void Weights(int64_t layer, Pass<T>* pass);
  void Forward(Pass<T>* pass);   // all phases of all layers
  void Backward(Pass<T>* pass);  // all phases of all layers, and their weight gradients
  // All of the above in one call. Returns pass->losses.
  Losses Run(const Batch& batch, const StepSize& step, bool backward, Pass<T>* pass);

  // Elements of the activations of a micro-batch with `rows` rows over the TP group, by formula:
  // `kept` for each Pass in flight, dropped() for each micro-batch that computes at the same time.
  // Counts all rows for MTP modules, which have fewer, and assumes that all experts get the same
  // number of rows.
  ActivationCounts CountActivations(int64_t rows) const;
  const BackwardOptions& backward() const { return backward_; }
  const SpareStates<LayerState<T>>& spares() const { return spares_; }

  void ClearGradients();
  // [MoE layers][experts] number of this rank's tokens routed to each expert since ClearLoads.
  const std::vector<std::vector<float>>& loads() const { return loads_; }
  // Tokens with given experts, summed over MoE layers since ClearLoads, and how many of them would
  // have selected the same set.
  struct ReplayCounts {
    double replayed = 0.0, agreed = 0.0;
  };
  const ReplayCounts& replay() const { return replay_; }
  void ClearLoads();
  // Auxiliary-loss-free balancing: moves the selection biases by gamma, according to `loads` over
  // all ranks. Layers without a selection bias are unchanged.
  void MoveBiases(std::span<const std::vector<float>> loads, double gamma);

  const ModelConfig& config() const { return config_; }
  const LossOptions& options() const { return options_; }

 private:
  struct MtpModule {
    Parameter<T>*embedding_norm, *hidden_norm;
    Linear<T> projection;  // [H, 2 H]
    Parameter<T>* final_norm;
  };
  int64_t DepthOf(int64_t layer) const;
  bool IsFrozen(int64_t depth) const { return options_.mtp_only && depth == 0; }
  // Removes the gradients of parameters that are not trained: with mtp_only all but those of the
  // MTP modules, with LoRA all but adapters.
  void Freeze();
  // Whether a layer is the first or last one of a prediction depth on this stage.
  bool FirstOfDepth(int64_t layer) const {
    return (layer == 0 && stage_.first) || layer >= main_layers_;
  }
  bool LastOfDepth(int64_t layer) const {
    return (layer == main_layers_ - 1 && stage_.last) || layer >= main_layers_;
  }
  void AddLayer(int64_t index, const TensorNames& names, const LayerRanks& ranks);
  int64_t MyRows(const DepthState<T>& depth) const { return tp_.Mine(depth.rows.rows()).size(); }
  // Copies the given experts of this rank's rows from the batch to the layer's router.
  void GiveExperts(int64_t layer, Pass<T>* pass);
  // This rank's part of DepthState::source of an MTP module.
  std::span<const int32_t> MySources(const DepthState<T>& depth) const {
    const Range mine = tp_.Mine(depth.rows.rows());
    return std::span(depth.source).subspan(mine.begin, mine.size());
  }
  void EmbedRows(const DepthState<T>& depth, T* out);
  void EmbedRowsBackward(const DepthState<T>& depth, const T* dout);
  NormShape<T> Norm(int64_t rows) const;
  Parameter<T>* FinalNorm(int64_t depth) {
    return depth == 0 ? final_norm_ : mtp_[depth - 1].final_norm;
  }
  void Join(int64_t depth, Pass<T>* pass);
  void JoinBackward(int64_t depth, Pass<T>* pass);

  const ModelConfig config_;
  const LossOptions options_;
  const LossOptions no_losses_ = {};  // loss options of frozen layers
  const StageRange stage_;
  const int64_t main_layers_, hidden_;  // layers of this stage without MTP modules; hidden size
  const TensorGroup tp_;
  ThreadPool& pool_;
  const BackwardOptions backward_;
  SpareStates<LayerState<T>> spares_;
  std::vector<float> cos_sin_;
  ParameterSet<T> set_;
  Parameter<T>*embedding_ = nullptr, *final_norm_ = nullptr;  // null if on another stage
  HeadLoss<T> head_;
  std::vector<std::unique_ptr<DecoderLayer<T>>> layers_;
  std::vector<MtpModule> mtp_;
  std::vector<std::string> mtp_prefixes_;  // prefixes of the modules' tensor names
  std::vector<int64_t> moe_index_;         // [layers] index into loads_, or -1
  std::vector<std::vector<float>> loads_;
  ReplayCounts replay_;
};

}  // namespace switchyard::train
