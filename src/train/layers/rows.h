// Layout of packed rows: the sequence of each row and its position.
#pragma once

#include <cstdint>
#include <vector>

namespace switchyard::train {

// Packed sequences with causal visibility: a row attends to itself and to the earlier rows of its
// sequence.
struct RowLayout {
  std::vector<int32_t> begins;     // [sequences + 1], ascending from 0
  std::vector<int32_t> positions;  // [m], counted from 0 in each sequence

  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
  int64_t sequences() const { return begins.empty() ? 0 : static_cast<int64_t>(begins.size()) - 1; }

  static RowLayout Of(std::vector<int32_t> begins) {
    RowLayout layout;
    for (size_t s = 0; s + 1 < begins.size(); ++s)
      for (int32_t t = begins[s]; t < begins[s + 1]; ++t) layout.positions.push_back(t - begins[s]);
    layout.begins = std::move(begins);
    return layout;
  }
};

}  // namespace switchyard::train
