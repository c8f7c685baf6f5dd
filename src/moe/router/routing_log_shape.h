// Sizes of the record in which a rank on a GPU stores the routing of a pass. They are also in
// builds without CUDA, because the memory plan includes the record.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard {

struct RoutingLogShape {
  int layers = 0;    // layers with experts
  int experts = 0;   // logical experts
  int physical = 0;  // physical experts of all ranks
  int local = 0;     // physical experts of this rank
  int top_k = 0;
  int64_t max_rows = 0;   // maximum rows of a group in a pass
  bool tokens = false;    // whether the choices of each row are recorded; false: only their counts
  bool dispatch = false;  // whether the rows dispatched to each expert of this rank are counted

  // The following sizes are in int32 words. Counts of a layer: [experts], [physical], [local].
  int64_t CountsOfLayer() const { return int64_t{experts} + physical + local; }
  int64_t Counts() const { return tokens && !dispatch ? 0 : layers * CountsOfLayer(); }
  // Ids: logical [layers, max_rows, top_k], then physical [layers, max_rows, top_k].
  int64_t IdsOfLayer() const { return max_rows * top_k; }
  int64_t Ids() const { return tokens ? 2 * layers * IdsOfLayer() : 0; }
  // Control words and times come first. They are padded to kAlignment words.
  static constexpr int64_t kAlignment = 64;
  int64_t Words() const { return kAlignment + Counts() + Ids(); }
  size_t Bytes() const { return static_cast<size_t>(Words()) * sizeof(int32_t); }
};

}  // namespace switchyard
