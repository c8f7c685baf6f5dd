// Planned changes of the ranks, for HTTP endpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "server/front/scale_request.h"

namespace switchyard {

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
  // Begins a change of the layout. `done` is called once: on another thread, or within this call if
  // there is nothing to change. Returns false, and never calls `done`, if another change is
  // running. Throws Error kInvalid for an invalid layout; the error lists the valid ones.
  virtual bool Scale(const ScaleRequest& request, std::function<void(const ScaleResult&)> done) = 0;
};

}  // namespace switchyard
