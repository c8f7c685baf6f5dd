// Rows of all attention groups between the ranks that have them and the ranks that work on all.
#pragma once

#include <cstdint>

#include "comm/device/collectives.h"
#include "comm/mesh.h"
#include "moe/token_spread.h"

namespace switchyard {

// `spread` says which rows each rank answers for; `group_rows` [rows of this rank's group, width]
// and `all_rows` [rows of all groups, width], groups one after the other. Collectives of the world,
// or of the attention group alone for GatherGroup; every rank of it calls, with no rows too.

// all_rows from the ranks' own rows.
void GatherWorld(const Mesh& mesh, const RankGroups& groups, const TokenSpread& spread,
                 int64_t width, const float* group_rows, float* all_rows);
// group_rows, whole on every rank of the group, from the ranks' own ones; in place.
void GatherGroup(const Mesh& mesh, const RankGroups& groups, const TokenSpread& spread,
                 int64_t width, float* group_rows);
// group_rows from the sum over the world of all_rows.
void ReduceToGroups(const Mesh& mesh, const RankGroups& groups, const TokenSpread& spread,
                    int64_t width, const float* all_rows, float* group_rows);

}  // namespace switchyard
