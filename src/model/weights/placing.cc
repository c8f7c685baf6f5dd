#include "model/weights/placing.h"

#include <cstring>
#include <span>

#include "kernels/fused_ops.h"

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

// Concatenates the biases of all parts. Returns false if only some have one.
bool JoinBiases(std::span<const LinearWeight* const> parts, Tensor* joined) {
  int64_t size = 0;
  for (const LinearWeight* part : parts) {
    if (part->bias.defined() != parts[0]->bias.defined()) return false;
    size += part->w.n;
  }
  if (!parts[0]->bias.defined()) return true;
  *joined = Tensor::Empty(DType::kF32, {size});
  auto* to = static_cast<float*>(joined->mutable_raw());
  for (const LinearWeight* part : parts) {
    std::memcpy(to, part->bias_data(), part->w.n * sizeof(float));
    to += part->w.n;
  }
  return true;
}

// Stacks queries, keys and values into one matrix if the device supports it. Joins qkv's bias from
// host memory; q, k and v are placed already.
void Join(kernels::Device& device, GroupedAttentionWeights& w) {
  const WeightView parts[] = {w.q.w, w.k.w, w.v.w};
  w.qkv.w = device.fused()->ConcatenateRows(parts);
  if (!w.qkv.w.defined()) return;
  int64_t row = 0;
  for (WeightView* part : {&w.q.w, &w.k.w, &w.v.w}) {
    const int64_t end = row + part->n;
    *part = w.qkv.w.Rows(row, end);
    row = end;
  }
}

}  // namespace

void UploadWeights(kernels::Device& device, ModelWeights& weights) {
  if (device.is_cpu()) return;
  // A tied head consists of rows of the embedding. Head and embedding are placed separately,
  // because their shards may differ.
  Place(device, weights.embedding);
  Place(device, weights.head);
  Place(device, weights.head_bias);
  Place(device, weights.final_norm);
  if (weights.hidden_input) {
    Place(device, weights.hidden_input->embedding_norm);
    Place(device, weights.hidden_input->hidden_norm);
    Place(device, weights.hidden_input->projection);
  }
  for (LayerWeights& layer : weights.layers) {
    GroupedAttentionWeights& grouped = layer.grouped;
    const LinearWeight* const qkv[] = {&grouped.q, &grouped.k, &grouped.v};
    const bool joins =
        device.fused() && grouped.q.w.defined() && JoinBiases(qkv, &grouped.qkv.bias);
    Place(device, grouped.qkv.bias);
    for (Tensor* t : {&layer.input_norm, &layer.post_attention_norm, &layer.attention_output_norm,
                      &layer.feed_forward_output_norm, &layer.grouped.q_norm, &layer.grouped.k_norm,
                      &layer.grouped.sinks, &layer.latent.q_a_norm, &layer.latent.kv_a_norm})
      Place(device, *t);
    for (LinearWeight* w : {&layer.grouped.q, &layer.grouped.k, &layer.grouped.v, &layer.grouped.o,
                            &layer.grouped.gate, &layer.latent.q, &layer.latent.q_a,
                            &layer.latent.q_b, &layer.latent.kv_a, &layer.latent.o})
      Place(device, *w);
    if (joins) Join(device, grouped);
    for (auto* heads : {&layer.latent.k_up, &layer.latent.v_up})
      // The shard of one head may start inside a block of scales, and the shard of another at a
      // block's start. Ops need one format for all heads.
      for (WeightView& w : *heads) w = device.Place(w, /*plain=*/true);
    for (WeightView* w : {&layer.dense.gate, &layer.dense.up, &layer.dense.down}) Place(device, *w);
  }
}

}  // namespace switchyard
