// Which part of each dimension a rank holds: pure functions.
#pragma once

#include <cstdint>

#include "comm/mesh.h"
#include "model/config.h"

namespace switchyard {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  Range operator*(int64_t unit) const { return {begin * unit, end * unit}; }
};

// Error kInvalid naming flag and key where the sizes do not split: tp must divide the query heads,
// tp and the KV heads must divide one another one way round, MoE-TP must divide the experts'
// intermediate size, and every rank must get a part of each dense feed-forward.
void CheckSplits(const ModelConfig& config, const Mesh& mesh, bool whole_shared_expert);

Range QueryHeads(const AttentionConfig& attention, const Mesh& mesh);
// Where tp exceeds the KV heads, ranks in runs of tp / kv_heads hold the same one.
Range KvHeads(const AttentionConfig& attention, const Mesh& mesh);
// Rows of the embedding and the head: equal runs of ceil(vocab / tp), the last ones shorter or
// empty.
Range VocabRows(int64_t vocab_size, int tp, int tp_rank);
// Part `index` of `parts` contiguous runs of [0, total) whose lengths differ by at most one.
Range EvenPart(int64_t total, int parts, int index);

}  // namespace switchyard
