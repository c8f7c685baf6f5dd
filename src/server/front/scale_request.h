// The layout that POST /scale_elastic_ep requests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "moe/options.h"

namespace switchyard {

// The body of POST /scale_elastic_ep. Plain value.
struct ScaleRequest {
  std::optional<int> tp, ep, dp;  // sizes of the new layout
  std::vector<int> leave;         // indices of ranks to remove
  int come = 0;                   // number of ranks to add
  // Whether the new ranks load while the present ranks still serve. Unset: they do if the memory
  // suffices for both.
  std::optional<bool> beside;
  bool restart_all = false;
  std::vector<int> restart;  // ranks to restart, one after another

  bool sizes() const { return tp || ep || dp; }
  bool restarts() const { return restart_all || !restart.empty(); }
};

// Throws Error kInvalid if the request has fields that exclude each other, and ParameterError if a
// field names a rank outside of the layout `now`.
void CheckScale(const ScaleRequest& request, const MeshShape& now);

// The requested layout. Sizes that the request omits keep the ratios of `base`: tp / ep ranks share
// an expert, and tp / dp ranks form an attention group. Without DP attention (dp 1) there is one
// group, and with ep 1 all ranks share all experts. `base` is `now` if it has several ranks. A
// single rank has no ratios, so `base` is then the last layout with several ranks. Throws
// ParameterError if the ratios do not divide the number of ranks. The result may still not be valid
// (Mesh).
MeshShape ScaledShape(const ScaleRequest& request, const MeshShape& now, const MeshShape& base);

// "tp 4, ep 4, dp 2"
std::string DescribeShape(const MeshShape& shape);

// Whether outputs are bitwise equal in both layouts (ARCHITECTURE.md, "Placement invariance").
bool OutputsStayEqual(const MeshShape& a, const MeshShape& b, const MoeOptions& moe);

}  // namespace switchyard
