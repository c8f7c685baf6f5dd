#include "model/weights/expert_formats.h"

#include "comm/mesh.h"
#include "model/weights/source.h"

namespace switchyard {

ExpertFormats ExpertFormatsOf(const ModelConfig& config) {
  const ModelWeights weights = BuildWeights(config, Mesh(), {}, *MakeCountingSource(config));
  ExpertFormats found;
  for (const LayerWeights& layer : weights.layers) {
    for (const kernels::ExpertWeights& expert : layer.moe.experts) {
      for (const WeightView* w : {&expert.gate, &expert.up, &expert.down}) {
        found.formats.insert(w->format);
        found.activations.insert(w->activation);
        found.bytes += static_cast<double>(w->n * w->k) * BytesPerWeight(w->format, w->group_size);
      }
    }
  }
  return found;
}

}  // namespace switchyard
