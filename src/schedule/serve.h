// Schedules the operations of one rank in a forward step of serving. The step has one micro-batch,
// or several micro-batches that overlap each other's all-to-alls (two-batch overlap).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/operation.h"

namespace switchyard::schedule {

enum class Mode : uint8_t { kPrefill, kDecode };

// The layers of a rank: all layers of the model, or those of a pipeline stage.
struct LayerRange {
  int begin = 0, end = 0;     // [begin, end) of the model's layers
  bool has_embedding = true;  // false: the previous stage sends the hidden states
  bool has_head = true;       // false: the next stage receives the hidden states

  int size() const { return end - begin; }
};

// All inputs of the schedule. They are equal on all ranks of a stage, so these ranks have the same
// schedule and issue their collectives in the same order.
struct ServeShape {
  std::vector<bool> experts;  // [layers of the model]: true for MoE layers
  LayerRange range;
  Mode mode = Mode::kPrefill;
  int micro_batches = 1;  // number of parts of the batch; 2: two-batch overlap
  // Number of segments (LayerSegments) by which a micro-batch trails the previous one. If unset: 0
  // in prefill, 2 in decode.
  std::optional<int> offset;
  bool shared_expert = true;  // whether MoE layers have a shared expert that is not dispatched
  // The following fields are settings of single-batch overlap.
  // The exchange during which the shared expert runs: kDispatch or kCombine. If unset: kCombine in
  // prefill with several micro-batches, else kDispatch.
  std::optional<Phase> shared_under;
  // If set, combine starts before the experts' down projection, and sends the outputs of each part
  // of the experts as soon as they are computed.
  bool down_under_combine = false;

  bool moe(int layer) const { return experts[range.begin + layer]; }  // index within the range
};

// The values of `offset` and `shared_under`, or their defaults if they are unset.
int Offset(const ServeShape& shape);
Phase SharedUnder(const ServeShape& shape);

// Phases that one micro-batch runs without interruption. Between two segments another micro-batch
// may run.
using Segment = std::vector<Phase>;

// The phases of a layer, divided into segments. A dense layer is one segment, because it has no
// exchange.
//
// Prefill, offset 0: attention route dispatch | experts combine | shared finish. Segments are long,
// so micro-batches A and B alternate:
//
//    A: attention route dispatch           B: attention route dispatch (hides A's dispatch)
//    A: experts combine (B's dispatch)     B: experts combine (A's combine)
//    A: shared finish (B's combine) …
//
// Decode, offset 2: qkv | attention route | dispatch shared | experts combine | finish. The two
// parts of attention hide the two exchanges of the other micro-batch. One exchange is in flight at
// a time:
//
//    A: dispatch shared                    B: qkv (hides A's dispatch)
//    A: experts combine                    B: attention route (A's combine)
//    A: finish                             B: dispatch shared
//    A: qkv (B's dispatch)                 B: experts combine
//    A: attention route (B's combine)      B: finish
//
// Segments and offsets follow SGLang's two-batch overlap of DeepSeek-V3, which calls a segment a
// stage. In SGLang's decode, the last segment only receives the rows of combine; here kFinish also
// adds them.
std::vector<Segment> LayerSegments(const ServeShape& shape, bool moe);
// The phases of all segments of LayerSegments, in one list.
std::vector<Phase> LayerPhases(const ServeShape& shape, bool moe);

// Returns the schedule of at least one layer and one micro-batch. The last segment of a layer and
// the first segment of the next layer are merged, except after MoE layers in decode.
std::vector<Operation> Plan(const ServeShape& shape);

}  // namespace switchyard::schedule
