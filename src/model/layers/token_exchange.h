// Exchange of token rows between attention groups for layers that process all groups' tokens.
#pragma once

#include <cstdint>

#include "comm/device/collectives.h"
#include "comm/mesh.h"
#include "moe/dispatchers/token_partition.h"

namespace switchyard {

// `partition` partitions the rows over ranks. `group_rows` is [rows of this rank's group, width],
// `all_rows` is [rows of all groups, width] in order of groups. The functions are collective over
// the world, and GatherGroup over the attention group. Every member calls them, even if it has no
// rows.

// Gathers all_rows from the ranks' own rows.
void GatherWorld(const Mesh& mesh, const RankGroups& groups, const TokenPartition& partition,
                 int64_t width, const float* group_rows, float* all_rows);
// Gathers group_rows on every rank of the group from the ranks' own rows; in place.
void GatherGroup(const Mesh& mesh, const RankGroups& groups, const TokenPartition& partition,
                 int64_t width, float* group_rows);
// Sums all_rows over the world and returns each group's rows in group_rows.
void ReduceToGroups(const Mesh& mesh, const RankGroups& groups, const TokenPartition& partition,
                    int64_t width, const float* all_rows, float* group_rows);

}  // namespace switchyard
