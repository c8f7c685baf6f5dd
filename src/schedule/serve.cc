#include "schedule/serve.h"

#include <initializer_list>

#include "core/check.h"

namespace switchyard::schedule {
namespace {

// Whether attention is split into two segments. It is split only if its parts overlap the exchanges
// of another micro-batch.
bool SplitsAttention(const ServeShape& shape) {
  return shape.mode == Mode::kDecode && shape.micro_batches > 1;
}

Segment PhaseIf(bool listed, Phase phase) { return listed ? Segment{phase} : Segment{}; }

Segment Join(std::initializer_list<Segment> parts) {
  Segment all;
  for (const Segment& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// The operations of one micro-batch, in segments.
std::vector<std::vector<Operation>> SegmentsOf(const ServeShape& shape, int m) {
  std::vector<std::vector<Operation>> segments(1);
  const auto add = [&](Kind kind) { segments.back().push_back({.kind = kind, .micro_batch = m}); };
  add(shape.range.has_embedding ? Kind::kEmbed : Kind::kReceive);
  for (int layer = 0; layer < shape.range.size(); ++layer) {
    bool first = true;  // the first segment of a layer extends the last segment in the list
    for (const Segment& segment : LayerSegments(shape, shape.moe(layer))) {
      if (!first) segments.emplace_back();
      first = false;
      for (const Phase phase : segment) {
        segments.back().push_back(
            {.kind = Kind::kForward, .micro_batch = m, .layer = layer, .phase = phase});
      }
    }
    if (shape.moe(layer) && shape.mode == Mode::kDecode) segments.emplace_back();
  }
  if (shape.range.has_head) {
    add(Kind::kLogits);
    add(Kind::kSample);
  } else {
    add(Kind::kSend);
  }
  return segments;
}

}  // namespace

int Offset(const ServeShape& shape) {
  return shape.offset.value_or(shape.mode == Mode::kDecode ? 2 : 0);
}

Phase SharedUnder(const ServeShape& shape) {
  const bool combine = shape.mode == Mode::kPrefill && shape.micro_batches > 1;
  return shape.shared_under.value_or(combine ? Phase::kCombine : Phase::kDispatch);
}

std::vector<Segment> LayerSegments(const ServeShape& shape, bool moe) {
  const Segment qkv = PhaseIf(SplitsAttention(shape), Phase::kQkv);
  if (!moe) return {Join({qkv, {Phase::kAttention, Phase::kExperts, Phase::kFinish}})};
  const bool under_dispatch = SharedUnder(shape) == Phase::kDispatch;
  const Segment with_dispatch = PhaseIf(shape.shared_expert && under_dispatch, Phase::kShared);
  const Segment with_combine = PhaseIf(shape.shared_expert && !under_dispatch, Phase::kShared);
  const Segment down = PhaseIf(shape.down_under_combine, Phase::kDown);
  if (shape.mode == Mode::kPrefill) {
    return {{Phase::kAttention, Phase::kRoute, Phase::kDispatch},
            Join({with_dispatch, {Phase::kExperts, Phase::kCombine}, down}),
            Join({with_combine, {Phase::kFinish}})};
  }
  std::vector<Segment> segments = {qkv,
                                   {Phase::kAttention, Phase::kRoute},
                                   Join({{Phase::kDispatch}, with_dispatch}),
                                   Join({{Phase::kExperts, Phase::kCombine}, down, with_combine}),
                                   {Phase::kFinish}};
  std::erase(segments, Segment{});
  return segments;
}

std::vector<Phase> LayerPhases(const ServeShape& shape, bool moe) {
  std::vector<Phase> phases;
  for (const Segment& segment : LayerSegments(shape, moe)) {
    phases.insert(phases.end(), segment.begin(), segment.end());
  }
  return phases;
}

std::vector<Operation> Plan(const ServeShape& shape) {
  const int offset = Offset(shape);
  CHECK_GT(shape.micro_batches, 0);
  CHECK_GE(offset, 0);
  CHECK_GE(shape.range.begin, 0);
  CHECK_GT(shape.range.size(), 0);
  CHECK_LE(static_cast<size_t>(shape.range.end), shape.experts.size());
  CHECK(SharedUnder(shape) == Phase::kDispatch || SharedUnder(shape) == Phase::kCombine);
  std::vector<std::vector<std::vector<Operation>>> segments;  // [micro-batches][segments]
  segments.reserve(shape.micro_batches);
  for (int m = 0; m < shape.micro_batches; ++m) segments.push_back(SegmentsOf(shape, m));
  const int count = static_cast<int>(segments.front().size());
  std::vector<Operation> list;
  for (int turn = 0; turn < count + (shape.micro_batches - 1) * offset; ++turn) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      const int i = turn - m * offset;
      if (i < 0 || i >= count) continue;
      list.insert(list.end(), segments[m][i].begin(), segments[m][i].end());
    }
  }
  return list;
}

}  // namespace switchyard::schedule
