// Test helpers for weight formats.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "quant/weight_view.h"

namespace switchyard {

inline std::vector<float> Row(const WeightView& w, int64_t row) {
  std::vector<float> out(w.k);
  DequantizeRow(w, row, 0, w.k, out.data());
  return out;
}

inline std::vector<float> RandomValues(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

}  // namespace switchyard
