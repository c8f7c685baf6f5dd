#include "model/layers/token_exchange.h"

#include <vector>

namespace switchyard {
namespace {

// Element counts of the own rows of `ranks` ranks from `first` on, `unit` floats or bytes per row.
std::vector<size_t> Counts(const TokenPartition& partition, int first, int ranks, size_t unit) {
  std::vector<size_t> counts(ranks);
  for (int i = 0; i < ranks; ++i) counts[i] = partition.own(first + i).size() * unit;
  return counts;
}

}  // namespace

void GatherWorld(const Mesh& mesh, const RankGroups& groups, const TokenPartition& partition,
                 int64_t width, const float* group_rows, float* all_rows) {
  const float* own = group_rows + partition.own(mesh.tp_rank()).begin * width;
  groups.tp->AllGatherV(own, all_rows, Counts(partition, 0, mesh.tp(), width * sizeof(float)));
}

void GatherGroup(const Mesh& mesh, const RankGroups& groups, const TokenPartition& partition,
                 int64_t width, float* group_rows) {
  if (mesh.attn_tp() == 1) return;
  groups.attn_tp->AllGatherV(
      group_rows + partition.own(mesh.tp_rank()).begin * width, group_rows,
      Counts(partition, mesh.dp_rank() * mesh.attn_tp(), mesh.attn_tp(), width * sizeof(float)));
}

void ReduceToGroups(const Mesh& mesh, const RankGroups& groups, const TokenPartition& partition,
                    int64_t width, const float* all_rows, float* group_rows) {
  float* own = group_rows + partition.own(mesh.tp_rank()).begin * width;
  groups.tp->ReduceScatterV(all_rows, own, Counts(partition, 0, mesh.tp(), width));
  GatherGroup(mesh, groups, partition, width, group_rows);
}

}  // namespace switchyard
