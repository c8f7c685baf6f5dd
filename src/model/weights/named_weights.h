// The names of a layer's weights in checksums, on every device.
#pragma once

#include <optional>
#include <string>

#include "core/format.h"
#include "model/weights.h"

namespace switchyard {

// Calls of AddAttention for the weights of compressed entries.
template <typename Receiver>
void AddEntries(const std::string& prefix, const std::optional<EntryWeights>& w, Receiver* to) {
  if (!w) return;
  to->Add(prefix + "rows", w->rows);
  to->Add(prefix + "gates", w->gates);
  to->Add(prefix + "bias", w->bias);
  to->Add(prefix + "norm", w->norm);
}
template <typename Receiver>
void AddCompressed(const std::string& prefix, const CompressedAttentionWeights& w, Receiver* to) {
  to->Add(prefix + "q_a", w.q_a);
  to->Add(prefix + "q_b", w.q_b);
  to->Add(prefix + "q_a_norm", w.q_a_norm);
  to->Add(prefix + "kv", w.kv);
  to->Add(prefix + "kv_norm", w.kv_norm);
  to->Add(prefix + "sinks", w.sinks);
  for (size_t group = 0; group < w.o_a.size(); ++group)
    to->Add(fmt::format("{}o_a.{}", prefix, group), w.o_a[group]);
  to->Add(prefix + "o", w.o);
  AddEntries(prefix + "entries.", w.entries, to);
  to->Add(prefix + "index.q", w.index_q);
  to->Add(prefix + "index.weights", w.index_weights);
  AddEntries(prefix + "index.entries.", w.index_entries, to);
}

// Calls to->Add(name, weight) for the weights of residual streams, as AddAttention does.
template <typename Receiver>
void AddStreams(const std::string& prefix, const StreamWeights& w, Receiver* to) {
  to->Add(prefix + "logits", w.logits);
  to->Add(prefix + "base", w.base);
  to->Add(prefix + "scale", w.scale);
}

// Calls to->Add(name, weight) for each attention weight of a layer, also for undefined ones.
// `prefix`: start of each name, such as "layers.0.attention.". Receiver::Add takes a LinearWeight,
// a WeightView or a Tensor.
template <typename Receiver>
void AddAttention(const std::string& prefix, const LayerWeights& layer, Receiver* to) {
  const GroupedAttentionWeights& g = layer.grouped;
  to->Add(prefix + "q", g.q);
  to->Add(prefix + "k", g.k);
  to->Add(prefix + "v", g.v);
  to->Add(prefix + "o", g.o);
  to->Add(prefix + "gate", g.gate);
  to->Add(prefix + "q_norm", g.q_norm);
  to->Add(prefix + "k_norm", g.k_norm);
  to->Add(prefix + "sinks", g.sinks);
  to->Add(prefix + "k_scales", g.k_scales);
  to->Add(prefix + "v_scales", g.v_scales);
  const LinearAttentionWeights& r = layer.linear;
  for (size_t i = 0; i < r.in.size(); ++i) to->Add(fmt::format("{}in.{}", prefix, i), r.in[i]);
  for (size_t i = 0; i < r.gates.size(); ++i)
    to->Add(fmt::format("{}gates.{}", prefix, i), r.gates[i]);
  for (size_t i = 0; i < r.low_in.size(); ++i)
    to->Add(fmt::format("{}low.{}", prefix, i), r.low_in[i]);
  to->Add(prefix + "low.a", r.low_a);
  to->Add(prefix + "low.z", r.low_z);
  to->Add(prefix + "conv", r.conv);
  to->Add(prefix + "conv.bias", r.conv_bias);
  to->Add(prefix + "rate", r.rate);
  to->Add(prefix + "bias", r.bias);
  to->Add(prefix + "skip", r.skip);
  to->Add(prefix + "norm", r.norm);
  to->Add(prefix + "linear.q_norm", r.q_norm);
  to->Add(prefix + "linear.k_norm", r.k_norm);
  to->Add(prefix + "o", r.o);
  const LatentAttentionWeights& l = layer.latent;
  to->Add(prefix + "q", l.q);
  to->Add(prefix + "q_a", l.q_a);
  to->Add(prefix + "q_b", l.q_b);
  to->Add(prefix + "q_a_norm", l.q_a_norm);
  to->Add(prefix + "kv_a", l.kv_a);
  to->Add(prefix + "kv_a_norm", l.kv_a_norm);
  to->Add(prefix + "latent.gate", l.gate);
  to->Add(prefix + "cache_scale", l.cache_scale);
  for (size_t head = 0; head < l.k_up.size(); ++head)
    to->Add(fmt::format("{}k_up.{}", prefix, head), l.k_up[head]);
  for (size_t head = 0; head < l.v_up.size(); ++head)
    to->Add(fmt::format("{}v_up.{}", prefix, head), l.v_up[head]);
  to->Add(prefix + "o", l.o);
  if (l.index) {
    to->Add(prefix + "index.q", l.index->q);
    to->Add(prefix + "index.k", l.index->k);
    to->Add(prefix + "index.k_norm", l.index->k_norm);
    to->Add(prefix + "index.weights", l.index->weights);
  }
  AddCompressed(prefix, layer.compressed, to);
}

}  // namespace switchyard
