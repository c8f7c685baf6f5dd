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

// Error kInvalid naming flag and key where the sizes do not split: the ranks of an attention group
// must divide the query heads, they and the KV heads must divide one another one way round, MoE-TP
// must divide the experts' intermediate size, and every rank must get a part of each dense
// feed-forward that is split.
void CheckSplits(const ModelConfig& config, const Mesh& mesh, bool whole_shared_expert);

Range QueryHeads(const AttentionConfig& attention, const Mesh& mesh);
// Where an attention group's ranks exceed the KV heads, runs of them hold the same one.
Range KvHeads(const AttentionConfig& attention, const Mesh& mesh);
// Rows of the vocabulary: equal runs of ceil(vocab / ranks), the last ones shorter or empty.
Range VocabRows(int64_t vocab_size, int ranks, int rank);
// The embedding is split over the attention group; the head too where dense layers are whole on
// each rank, else over the world.
Range EmbeddingRows(int64_t vocab_size, const Mesh& mesh);
Range HeadRows(int64_t vocab_size, const Mesh& mesh);
// Part `index` of `parts` contiguous runs of [0, total) whose lengths differ by at most one `unit`.
// They begin at multiples of it, unless there are fewer units than parts: then anywhere.
Range EvenPart(int64_t total, int parts, int index, int64_t unit = 1);

}  // namespace switchyard
