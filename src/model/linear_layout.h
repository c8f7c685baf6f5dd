// The order of the elements of linear attention's projections on one rank.
#pragma once

#include <cstdint>

#include "kernels/state_rule.h"
#include "model/config.h"

namespace switchyard {

// A row of the projections has q, k, v and z of all key heads of the rank. The convolution reads q,
// k and v, and writes rows that have only these ("mixed"). Without a convolution, q, k and v stay
// in their places in the row. A row of gates has b and a; Mamba-2 has no b, Lightning Attention
// neither.
struct LinearLayout {
  // Where the part of key head h begins: first + h · stride.
  struct Part {
    int64_t first = 0, stride = 0;
  };

  LinearLayout(const LinearAttentionConfig& c, int64_t heads)
      : values(c.group() * c.value_dim), mixed_width(heads * (2 * c.key_dim + values)) {
    const int64_t keys = c.key_dim, own = 2 * keys + values, group = c.group();
    const bool by_head = c.rule == kernels::StateRule::kDelta && !c.separate;
    if (!by_head) {
      const int64_t steps = kernels::IsDeltaRule(c.rule) ? group : 0;  // b of a key head
      const int64_t decays = c.rule == kernels::StateRule::kFixed ? 0 : group * c.decays();
      channels = group_stride = mixed_width;
      q = {0, keys};
      k = {heads * keys, keys};
      v = {2 * heads * keys, values};
      z = {heads * own, values};
      b = {0, steps};
      a = {heads * steps, decays};
      gates_width = heads * (steps + decays);
    } else {
      groups = heads;
      channels = own;
      group_stride = own + values;
      q = {0, own};
      k = {keys, own};
      v = {2 * keys, own};
      z = {own, own + values};
      b = {0, 2 * group};
      a = {group, 2 * group};
      gates_width = heads * 2 * group;
    }
    width = mixed_width + heads * values;
    factors_width = heads * group * (c.decays() + 1);
    low_width = 2 * c.gate_rank;
  }

  int64_t values;       // elements of v of a key head
  int64_t mixed_width;  // elements of a mixed row
  int64_t width = 0, gates_width = 0;
  int64_t factors_width = 0;  // decays and steps of a row (GatedDeltaParams::gates)
  // kKeyDelta: the inner elements of the products for a, then for z. 0: none.
  int64_t low_width = 0;
  // The channels of the convolution in a row of the projections (kernels::ShortConvParams).
  int64_t groups = 1, channels = 0, group_stride = 0;
  Part q, k, v;  // in a mixed row
  Part z;        // in a row of the projections
  Part b, a;     // in a row of gates
};

}  // namespace switchyard
