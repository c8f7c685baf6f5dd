#include "model/weights/placing.h"

namespace switchyard {
namespace {

void Place(kernels::Device& device, Tensor& t) {
  if (t.defined()) t = device.Place(t);
}
void Place(kernels::Device& device, WeightView& w) {
  if (w.defined()) w = device.Place(w);
}
void Place(kernels::Device& device, LinearWeight& linear) {
  Place(device, linear.w);
  Place(device, linear.bias);
}

}  // namespace

void PlaceWeights(kernels::Device& device, ModelWeights& weights) {
  if (device.is_cpu()) return;
  // A tied head is rows of the embedding: each is placed by itself, as each may be another part.
  Place(device, weights.embedding);
  Place(device, weights.head);
  Place(device, weights.final_norm);
  for (LayerWeights& layer : weights.layers) {
    for (Tensor* t : {&layer.input_norm, &layer.post_attention_norm, &layer.grouped.q_norm,
                      &layer.grouped.k_norm, &layer.grouped.sinks, &layer.latent.q_a_norm,
                      &layer.latent.kv_a_norm})
      Place(device, *t);
    for (LinearWeight* w :
         {&layer.grouped.q, &layer.grouped.k, &layer.grouped.v, &layer.grouped.o, &layer.latent.q,
          &layer.latent.q_a, &layer.latent.q_b, &layer.latent.kv_a, &layer.latent.o})
      Place(device, *w);
    for (auto* heads : {&layer.latent.k_up, &layer.latent.v_up})
      // One head's rows may begin inside a block of scales and another's not; ops want one format.
      for (WeightView& w : *heads) w = device.Place(w, /*plain=*/true);
    for (WeightView* w : {&layer.dense.gate, &layer.dense.up, &layer.dense.down}) Place(device, *w);
  }
}

}  // namespace switchyard
