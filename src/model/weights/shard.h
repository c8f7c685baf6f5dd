// Sharding: the range of each dimension that a rank holds. Pure functions.
#pragma once

#include <cstdint>

#include "comm/mesh.h"
#include "core/range.h"
#include "model/config.h"

namespace switchyard {

// Error kInvalid names flag and key if the sizes cannot be sharded. The ranks of an attention group
// must divide the query heads. They must divide the KV heads or be a multiple of them. MoE-TP
// must divide the experts' intermediate size, and every rank must get a part of each sharded dense
// feed-forward.
void CheckSplits(const ModelConfig& config, const Mesh& mesh, bool replicated_shared_expert);

// Key heads of linear attention, which the ranks of an attention group divide.
Range LinearKeyHeads(const LinearAttentionConfig& linear, const Mesh& mesh);
Range QueryHeads(const AttentionConfig& attention, const Mesh& mesh);
// Of a layer with grouped attention. If an attention group has more ranks than the layer has KV
// heads, several consecutive ranks hold the same head.
Range KvHeads(const ModelConfig& config, int64_t layer, const Mesh& mesh);
// The largest number of KV heads that a layer has on this rank.
int64_t MostKvHeads(const ModelConfig& config, const Mesh& mesh);
// Rows of the vocabulary: equal runs of ceil(vocab / ranks), the last ones shorter or empty.
Range VocabRows(int64_t vocab_size, int ranks, int rank);
// The embedding is sharded over the attention group. So is the head if dense layers are replicated;
// otherwise the head is sharded over the world.
Range EmbeddingRows(int64_t vocab_size, const Mesh& mesh);
Range HeadRows(int64_t vocab_size, const Mesh& mesh);

}  // namespace switchyard
