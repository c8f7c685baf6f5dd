#include "schedule/operation.h"

#include <fmt/format.h>

namespace switchyard::schedule {

const char* Name(Phase phase) {
  constexpr const char* kNames[] = {"qkv",     "attention", "route", "dispatch", "shared",
                                    "experts", "combine",   "down",  "finish"};
  return kNames[static_cast<int>(phase)];
}

const char* Name(Kind kind) {
  constexpr const char* kNames[] = {
      "begin",         "embed",   "receive",       "forward",          "send",
      "heads",         "logits",  "sample",        "receive gradient", "backward",
      "send gradient", "weights", "sum gradients", "await sums"};
  return kNames[static_cast<int>(kind)];
}

std::string Describe(const Operation& o, int first_layer) {
  std::string text = Name(o.kind);
  if (o.micro_batch != Operation::kNone) text += fmt::format(" of micro-batch {}", o.micro_batch);
  if (o.layer != Operation::kNone) text += fmt::format(", layer {}", first_layer + o.layer);
  if (o.kind == Kind::kForward || o.kind == Kind::kBackward) {
    text += fmt::format(", {}", Name(o.phase));
  }
  return text;
}

bool BeginsExchange(const Operation& o) {
  return (o.kind == Kind::kForward || o.kind == Kind::kBackward) &&
         (o.phase == Phase::kDispatch || o.phase == Phase::kCombine);
}

bool EndsExchange(const Operation& o) {
  if (o.kind == Kind::kForward) return o.phase == Phase::kExperts || o.phase == Phase::kFinish;
  return o.kind == Kind::kBackward && (o.phase == Phase::kExperts || o.phase == Phase::kAttention);
}

}  // namespace switchyard::schedule
