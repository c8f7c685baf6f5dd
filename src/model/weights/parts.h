// Requests for the tensors of a model by role, for one rank's shards.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/family.h"
#include "model/weights/source.h"

namespace switchyard {

// The model, rank and tensor names of a build. All borrowed.
struct BuildContext {
  const ModelConfig& config;
  const Mesh& mesh;
  const TensorNames& names;
  bool replicated_shared_expert = false;
  std::span<const ExpertPlacement> placements;  // one for each layer; empty: trivial
};

// Forwards requests to a source and counts the bytes it returns.
class Parts {
 public:
  Parts(const BuildContext& context, WeightSource& source)
      : context_(context), source_(source), schemes_(context.config.quantization) {}

  const ModelConfig& config() const { return context_.config; }
  const Mesh& mesh() const { return context_.mesh; }
  const TensorNames& names() const { return context_.names; }
  bool replicated_shared_expert() const { return context_.replicated_shared_expert; }
  ExpertPlacement PlacementOf(int64_t layer) const;
  double bytes() const { return bytes_; }
  void Count(double bytes) { bytes_ += bytes; }
  WeightSource& source() { return source_; }

  bool Has(const std::string& name) const { return source_.Has(name); }
  const LinearScheme& SchemeOf(std::string_view module) const { return schemes_.Of(module); }
  // The columns of linear `module` that part `index` of `parts` holds. Ranges begin at multiples of
  // the unit of its weight format. The preceding linear is divided in the same way, by rows.
  Range EvenColumns(std::string_view module, int64_t columns, int parts, int index) const {
    return EvenPart(columns, parts, index, ColumnUnit(SchemeOf(module)));
  }
  WeightView Matrix(const MatrixRequest& request);
  void Vector(const VectorRequest& request, std::span<float> out);
  Tensor Vector(const VectorRequest& request);

  // Elements `part` of a norm's weight [n]. With ModelConfig::centred_norms, 1 is added to them.
  Tensor Norm(const std::string& name, int64_t n, Range part, std::string_view keys);
  Tensor Norm(const std::string& name, int64_t n, std::string_view keys) {
    return Norm(name, n, {0, n}, keys);
  }

  // Rows `rows` of the embedding or the head, [n, hidden].
  WeightView Vocabulary(const std::string& name, int64_t n, Range rows);
  // Rows `rows` of a reduced head, whose matrix `name` is stored with a row for each token.
  WeightView ReducedHeadRows(const std::string& name, const ReducedHead& head, Range rows);
  // A matrix [n, hidden] that is stored plain: most routers.
  WeightView Plain(const std::string& name, int64_t n, Range rows, std::string_view keys);
  // A router's matrix [experts, hidden]; quantized only if the checkpoint stores scales for it.
  WeightView RouterMatrix(const std::string& name, int64_t experts);
  // Rows `rows` of `name`.weight [n, k], and of its bias.
  LinearWeight Rows(const std::string& name, int64_t n, int64_t k, Range rows, bool bias,
                    std::string_view keys);
  // Columns `cols` of a linear at the output of attention or of a feed-forward. The shards'
  // products are summed over the group, so only its first rank has the bias.
  LinearWeight Columns(const std::string& name, int64_t n, int64_t k, Range cols, bool bias,
                       std::string_view keys);
  // gate, up and down linears of these names, of which the rank has `part` of `intermediate`. Rows
  // have `width` elements before and after. Gate and up read the same rows, quantized with one
  // scale or not at all. Activations without a gate: `gate` is the same matrix as `up`.
  kernels::ExpertWeights FeedForward(const std::string& gate, const std::string& up,
                                     const std::string& down, int64_t width, int64_t intermediate,
                                     Range part, std::string_view keys);

 private:
  const BuildContext context_;
  WeightSource& source_;
  const LinearSchemes schemes_;
  double bytes_ = 0;
};

// The prefix of the names of a layer: "model.layers.3.".
std::string LayerPrefix(const Parts& parts, int64_t index);
// Replaces names of *names, which are those of `parts`, by the names of an MTP layer's or an EAGLE
// head's own tensors. Other models: no change.
void UseHiddenInputNames(const Parts& parts, TensorNames* names);
// Requires ModelConfig::takes_hidden(). `depth`: the number of the MTP layer (mtp_depths).
HiddenInputWeights BuildHiddenInput(Parts& parts, int64_t depth = 0);

// `layer`: the number of the layer in the model; `prefix`: the result of LayerPrefix.
GroupedAttentionWeights BuildGroupedAttention(Parts& parts, int64_t layer,
                                              const std::string& prefix);
// `indexer`: whether the layer has an indexer.
LatentAttentionWeights BuildLatentAttention(Parts& parts, const std::string& prefix, bool indexer);
LinearAttentionWeights BuildLinearAttention(Parts& parts, int64_t layer, const std::string& prefix);
CompressedAttentionWeights BuildCompressedAttention(Parts& parts, int64_t layer,
                                                    const std::string& prefix);
// `name`: the beginning of the tensors' names; `logits`: rows of the matrix.
StreamWeights BuildStreams(Parts& parts, const std::string& name, int64_t logits);
// In BuildExperts and BuildMoe, biases that the results point to are appended to *owned.
//
// `by_token`: LayerConfig::by_token. BuildMoe builds the routed experts only on a rank without
// attention (Mesh::attends).
//
// Builds the given logical experts of a layer, each with its MoE-TP shard of the intermediate size.
std::vector<kernels::ExpertWeights> BuildExperts(Parts& parts, const std::string& prefix,
                                                 std::span<const int32_t> experts,
                                                 std::vector<Tensor>* owned);
MoeLayerWeights BuildMoe(Parts& parts, const std::string& prefix, const ExpertPlacement& placement,
                         bool by_token, std::vector<Tensor>* owned);

}  // namespace switchyard
