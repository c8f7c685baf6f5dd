#include "server/front/elastic_ranks.h"

#include <cstdint>
#include <iterator>
#include <set>

#include "core/error.h"
#include "core/format.h"
#include "engine/request.h"

namespace switchyard {
namespace {

constexpr int kMaxWorld = 1'000'000;  // bound that no machine reaches; prevents overflow

void CheckRanks(const char* field, const std::vector<int>& ranks, const MeshShape& now) {
  std::set<int> seen;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= now.tp)
      throw ParameterError(field, fmt::format("has {}, want ranks 0 to {}", rank, now.tp - 1));
    if (!seen.insert(rank).second) throw ParameterError(field, fmt::format("has {} twice", rank));
  }
}

// The number of groups of `per_group` ranks among `tp` ranks.
int Groups(const char* field, int tp, int per_group, const char* of) {
  if (tp % per_group != 0)
    throw ParameterError(field, fmt::format("gives {} ranks, and {} ranks {}: {} is not a multiple",
                                            tp, per_group, of, tp));
  return tp / per_group;
}

int64_t WorldOf(const ScaleRequest& request, const MeshShape& now, const MeshShape& base) {
  if (request.tp) return *request.tp;
  if (request.ep) return int64_t{*request.ep} * (base.tp / base.ep);
  if (request.dp) return int64_t{*request.dp} * (base.tp / base.dp);
  return now.tp - std::ssize(request.leave) + request.come;
}

}  // namespace

void CheckScale(const ScaleRequest& request, const MeshShape& now) {
  const bool moves = !request.leave.empty() || request.come > 0;
  if (request.sizes() + moves + request.restarts() != 1)
    throw Invalid(
        "want one of these: sizes of a new layout (new_tp_size, new_ep_size, new_dp_size), ranks "
        "to remove or add (leave, come), or ranks to restart (restart)");
  if ((now.expert_ranks > 0 || !now.expert_slots.empty()) && !request.restarts())
    throw Invalid(
        "the number of ranks is fixed with --expert-ranks and --expert-slots; only `restart` is "
        "supported");
  CheckRanks("leave", request.leave, now);
  CheckRanks("restart", request.restart, now);
  if (now.tp - std::ssize(request.leave) + request.come < 1)
    throw ParameterError("leave", fmt::format("removes all {} ranks, and come adds none", now.tp));
}

MeshShape ScaledShape(const ScaleRequest& request, const MeshShape& now, const MeshShape& base) {
  const char* field = request.tp   ? "new_tp_size"
                      : request.ep ? "new_ep_size"
                      : request.dp ? "new_dp_size"
                                   : "come";
  const int64_t world = WorldOf(request, now, base);
  if (world > kMaxWorld)
    throw ParameterError(field, fmt::format("gives {} ranks, want at most {}", world, kMaxWorld));
  MeshShape next = now;
  next.tp = static_cast<int>(world);
  next.ep = next.dp = 1;
  if (request.ep) {
    next.ep = *request.ep;
  } else if (base.ep > 1 || request.dp) {
    next.ep = Groups(field, next.tp, base.tp / base.ep, "share an expert (tp / ep)");
  }
  if (request.dp) {
    next.dp = *request.dp;
  } else if (base.dp > 1) {
    next.dp = Groups(field, next.tp, base.tp / base.dp, "form an attention group (tp / dp)");
  }
  if (now.dense_tp > 1) next.dense_tp = 0;  // 0: sharded over all ranks
  return next;
}

std::string DescribeShape(const MeshShape& shape) {
  return fmt::format("tp {}, ep {}, dp {}", shape.tp, shape.ep, shape.dp);
}

bool OutputsStayEqual(const MeshShape& a, const MeshShape& b, const MoeOptions& moe) {
  if (a.tp == b.tp && a.ep == b.ep && a.dp == b.dp) return true;
  const auto whole = [](const MeshShape& shape) {
    return shape.tp == shape.ep && shape.tp == shape.dp && shape.dense_tp == 1;
  };
  return moe.a2a_backend != "none" && moe.combine_rows == "slot" && whole(a) && whole(b);
}

}  // namespace switchyard
