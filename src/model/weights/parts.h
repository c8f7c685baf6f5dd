// The requests that all roles of a model's tensors are made of, in terms of one rank's parts.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/families/family.h"
#include "model/weights/source.h"

namespace switchyard {

// What is built for which rank, and by which names. All borrowed.
struct BuildContext {
  const ModelConfig& config;
  const Mesh& mesh;
  const TensorNames& names;
  bool whole_shared_expert = false;
  std::span<const ExpertPlacement> placements;  // one for each layer; empty: trivial
};

// Asks a source and counts the bytes it gives.
class Parts {
 public:
  Parts(const BuildContext& context, WeightSource& source)
      : context_(context), source_(source), schemes_(context.config.quantization) {}

  const ModelConfig& config() const { return context_.config; }
  const Mesh& mesh() const { return context_.mesh; }
  const TensorNames& names() const { return context_.names; }
  bool whole_shared_expert() const { return context_.whole_shared_expert; }
  ExpertPlacement PlacementOf(int64_t layer) const;
  double bytes() const { return bytes_; }

  bool Has(const std::string& name) const { return source_.Has(name); }
  const LinearScheme& SchemeOf(std::string_view module) const { return schemes_.Of(module); }
  // EvenPart of the columns of linear `module`, which are the rows of those before it: cut where
  // its format can be.
  Range EvenColumns(std::string_view module, int64_t columns, int parts, int index) const {
    return EvenPart(columns, parts, index, ColumnUnit(SchemeOf(module)));
  }
  WeightView Matrix(const MatrixRequest& request);
  void Vector(const VectorRequest& request, std::span<float> out);
  Tensor Vector(const VectorRequest& request);

  // Elements `part` of a norm's weight [n].
  Tensor Norm(const std::string& name, int64_t n, Range part, std::string_view keys);
  Tensor Norm(const std::string& name, int64_t n, std::string_view keys) {
    return Norm(name, n, {0, n}, keys);
  }

  // A matrix [n, hidden] that is never quantized: embedding, head, router.
  WeightView Plain(const std::string& name, int64_t n, Range rows, std::string_view keys);
  // A router's matrix [experts, hidden], which is plain unless its scales are stored beside it.
  WeightView RouterMatrix(const std::string& name, int64_t experts);
  // Rows `rows` of `name`.weight [n, k], and of its bias.
  LinearWeight Rows(const std::string& name, int64_t n, int64_t k, Range rows, bool bias,
                    std::string_view keys);
  // Columns `cols` of an attention output or a feed-forward: the parts' products are added up over
  // the group, so its first rank alone has the bias.
  LinearWeight Columns(const std::string& name, int64_t n, int64_t k, Range cols, bool bias,
                       std::string_view keys);
  // gate, up and down linears of these names, of which the rank has `part` of `intermediate`. Gate
  // and up read the same rows, quantized by one scale or not at all.
  kernels::ExpertWeights FeedForward(const std::string& gate, const std::string& up,
                                     const std::string& down, int64_t intermediate, Range part,
                                     std::string_view keys);

 private:
  const BuildContext context_;
  WeightSource& source_;
  const LinearSchemes schemes_;
  double bytes_ = 0;
};

// `prefix` is the layer's: "model.layers.3.".
GroupedAttentionWeights BuildGroupedAttention(Parts& parts, const std::string& prefix);
LatentAttentionWeights BuildLatentAttention(Parts& parts, const std::string& prefix);
// Biases that the results point into are appended to *owned.
//
// These logical experts of a layer, each the MoE-TP part of its intermediate elements.
std::vector<kernels::ExpertWeights> BuildExperts(Parts& parts, const std::string& prefix,
                                                 std::span<const int32_t> experts,
                                                 std::vector<Tensor>* owned);
MoeLayerWeights BuildMoe(Parts& parts, const std::string& prefix, const ExpertPlacement& placement,
                         std::vector<Tensor>* owned);

}  // namespace switchyard
