#include "comm/mesh.h"

#include <fmt/format.h>

#include <cstdint>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

void CheckExpertRanks(const MeshShape& shape) {
  const int ranks = shape.expert_ranks;
  if (ranks < 0 || ranks >= shape.tp)
    throw Invalid("--expert-ranks {}: want 0 to {} (--tp-size less a rank with attention)", ranks,
                  shape.tp - 1);
  if (ranks > 0 && (shape.ep != shape.tp || shape.dp != shape.tp || shape.dense_tp != 1))
    throw Invalid(
        "--expert-ranks {0}: each other rank needs whole attention and dense layers: want "
        "--ep-size "
        "{1}, --dp-size {2} and --moe-dense-tp-size 1",
        ranks, shape.tp, shape.tp - ranks);
  if (ranks > 0 && shape.pp > 1)
    throw Invalid("--expert-ranks {}: not supported with --pp-size {}", ranks, shape.pp);
  if (shape.expert_slots.empty()) return;
  if (static_cast<int>(shape.expert_slots.size()) != shape.ep)
    throw Invalid("--expert-slots has {} numbers; want one for each of {} EP ranks (--ep-size)",
                  shape.expert_slots.size(), shape.ep);
  for (const int32_t slots : shape.expert_slots)
    if (slots < 1) throw Invalid("--expert-slots {}: want at least 1 for each EP rank", slots);
}

}  // namespace

Mesh::Mesh(const MeshShape& shape, int rank) : shape_(shape), rank_(rank) {
  if (shape.tp < 1) throw Invalid("--tp {}: want at least 1", shape.tp);
  if (shape.ep < 1) throw Invalid("--ep {}: want at least 1", shape.ep);
  if (shape.tp % shape.ep != 0) {
    throw Invalid("--ep {} does not divide --tp {}: every expert is shared by tp / ep ranks",
                  shape.ep, shape.tp);
  }
  if (shape.dp < 1) throw Invalid("--dp-size {}: want at least 1", shape.dp);
  if (shape.tp % shape.dp != 0) {
    throw Invalid("--dp-size {} does not divide --tp {}: attention groups are tp / dp ranks",
                  shape.dp, shape.tp);
  }
  if (shape.dense_tp != 0 && shape.dense_tp != 1 && shape.dense_tp != shape.tp) {
    throw Invalid("--moe-dense-tp-size {}: want 1, or {} (--tp)", shape.dense_tp, shape.tp);
  }
  if (shape.pp < 1) throw Invalid("--pp-size {}: want at least 1", shape.pp);
  // One host has all stages, and its shared memory has at most this number of ranks.
  constexpr int64_t kMostRanks = 256;
  if (shape.pp > 1 && int64_t{shape.pp} * shape.tp > kMostRanks)
    throw Invalid("--pp-size {} with --tp-size {} gives {} ranks: want at most {}", shape.pp,
                  shape.tp, int64_t{shape.pp} * shape.tp, kMostRanks);
  CheckExpertRanks(shape);
  CHECK_GE(rank, 0);
  CHECK_LT(rank, shape.world());
}

namespace {
std::vector<int> Strided(int first, int stride, int count) {
  std::vector<int> ranks(count);
  for (int i = 0; i < count; ++i) ranks[i] = first + i * stride;
  return ranks;
}
}  // namespace

Mesh Mesh::Stage() const {
  MeshShape alone = shape_;
  alone.pp = 1;
  return {alone, tp_rank()};
}

std::vector<int> Mesh::World() const { return Strided(0, 1, world()); }
std::vector<int> Mesh::PpGroup() const { return Strided(tp_rank(), tp(), pp()); }
std::vector<int> Mesh::TpGroup() const { return Strided(first(), 1, tp()); }
std::vector<int> Mesh::AttnTpGroup() const {
  return Strided(first() + dp_rank() * attn_tp(), 1, attn_tp());
}
std::vector<int> Mesh::EpGroup() const { return Strided(first() + moe_tp_rank(), moe_tp(), ep()); }
std::vector<int> Mesh::MoeTpGroup() const {
  return Strided(first() + ep_rank() * moe_tp(), 1, moe_tp());
}

std::string Mesh::Title() const {
  std::string title = fmt::format("TP{} EP{}", tp_rank(), ep_rank());
  if (!attends()) return title + " experts";
  if (dp() > 1) title = fmt::format("DP{} {}", dp_rank(), title);
  return pp() == 1 ? title : fmt::format("PP{} {}", pp_rank(), title);
}

}  // namespace switchyard
