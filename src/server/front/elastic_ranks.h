// Planned changes of the ranks, and the state of elastic ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/host/rank_processes.h"
#include "comm/mesh.h"
#include "moe/options.h"

namespace switchyard {

// The layout that POST /scale_elastic_ep requests.

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

// Planned changes of the ranks, for HTTP endpoints.

// Sizes of the present layout. Groups are attention groups.
struct LayoutSizes {
  MeshShape mesh;
  int64_t num_pages = 0;             // KV pages of a group
  int32_t max_running_requests = 0;  // limit of a group
  int32_t chunked_prefill_size = 0;  // prompt tokens per step of a group; −1: no chunking
};

// The outcome of a change.
struct ScaleResult {
  std::string error;         // empty: the change succeeded
  bool unavailable = false;  // true with an `error`: the same request may succeed later
  bool changed = false;      // false: the ranks already had this layout
  MeshShape before, after;
  std::vector<int> loaded;  // ranks of layout `after` that loaded weights for this change
  bool beside = false;      // the ranks loaded while those of the previous layout still served
  bool outputs_stay_equal = true;
  std::vector<double> pauses;  // each: seconds without ranks that serve
  double seconds = 0;
};

struct ScaleState {
  bool running = false;
  MeshShape present, pending;  // equal if no other layout is pending
  std::string last_error;      // error of the last change; empty: it succeeded
};

// Implemented by the owner of the ranks. Thread-safe.
class ElasticRanks {
 public:
  virtual ~ElasticRanks() = default;
  virtual LayoutSizes sizes() const = 0;
  virtual ScaleState state() const = 0;
  virtual SpareRanks spares() const { return {}; }  // --spare-ranks
  // Begins a change of the layout. `done` is called once: on another thread, or within this call if
  // there is nothing to change. Returns false, and never calls `done`, if another change is
  // running. Throws Error kInvalid for an invalid layout; the error lists the valid ones.
  virtual bool Scale(const ScaleRequest& request, std::function<void(const ScaleResult&)> done) = 0;
};

}  // namespace switchyard
