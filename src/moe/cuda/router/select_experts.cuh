// Device functions of expert selection: one warp per token.
#pragma once

#include "kernels/cuda/device/warp.cuh"
#include "moe/cuda/router/select_experts.h"

namespace switchyard::cuda {

// The device function that records one choice.

// Records the choice for slot `slot` of the `k` slots of a token. `logical` and `physical` are −1
// if the slot has no expert. One thread per slot calls it. The order of the additions does not
// matter, since counts are integers.
__device__ __forceinline__ void RecordChoice(const RoutingRecord& record, int64_t token, int slot,
                                             int k, int logical, int physical) {
  const int64_t row = record.first_row + token - record.begin;
  if (row >= record.control->rows) return;
  if (record.logical_ids != nullptr) {
    record.logical_ids[row * k + slot] = logical;
    record.physical_ids[row * k + slot] = physical;
  }
  if (record.logical_counts == nullptr) return;
  if (logical >= 0) atomicAdd(record.logical_counts + logical, 1);
  if (physical >= 0) atomicAdd(record.physical_counts + physical, 1);
}

// Whether the token is recorded.
__device__ __forceinline__ bool IsRecorded(const RoutingRecord& record, int64_t token) {
  return record.control != nullptr && token >= record.begin && token < record.end;
}

}  // namespace switchyard::cuda

namespace switchyard::cuda::choice {

constexpr unsigned kAll = ~0u;

__device__ __forceinline__ float MinusInfinity() { return __int_as_float(0xff800000); }  // −∞

struct Best {
  float value;
  int id;  // −1: none
};

// Maps floats to integers that have the same order. No float maps to 0; +0 and −0 map to one value.
__device__ __forceinline__ uint32_t Rank(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
// Returns the id with the largest value over all lanes; ties go to the lower id. Lanes with id −1
// do not take part. Values must not be NaN.
__device__ __forceinline__ int WarpBest(Best best) {
  const uint32_t rank = best.id < 0 ? 0 : Rank(best.value);
  const uint32_t highest = __reduce_max_sync(kAll, rank);
  // −1 becomes the largest number, so it is never the minimum.
  const auto id = static_cast<uint32_t>(best.id);
  return static_cast<int>(__reduce_min_sync(kAll, rank == highest ? id : ~0u));
}

// Returns a bit mask: bit g is set if experts of group g are eligible. `choice`: [num_experts] in
// shared memory. Called by one warp.
static __device__ uint32_t BestGroups(const SelectExpertsParams& p, const float* choice, int lane) {
  const int size = p.num_experts / p.num_groups;
  float first = MinusInfinity(), second = MinusInfinity();
  if (lane < p.num_groups) {
    for (int i = 0; i < size; ++i) {
      const float v = choice[lane * size + i];
      if (v > first) {
        second = first;
        first = v;
      } else if (v > second) {
        second = v;
      }
    }
  }
  float score = p.top2_sum && size > 1 ? first + second : first;
  // A group with score −∞ does not count as one of the topk_groups groups. Its experts stay
  // eligible.
  const bool unranked = lane < p.num_groups && score == MinusInfinity();
  uint32_t groups = __ballot_sync(kAll, unranked);
  for (int i = 0; i < p.topk_groups; ++i) {
    const bool runs = lane < p.num_groups && score > MinusInfinity();
    const int best = WarpBest({score, runs ? lane : -1});
    if (best < 0) break;
    groups |= 1u << best;
    if (lane == best) score = MinusInfinity();
  }
  return groups;
}

// Constants of a lane's experts; element i is for expert 32 i + lane. A kernel loads them before it
// waits for the kernels that compute the logits.
template <int kPerLane>
struct ExpertConstants {
  float bias[kPerLane];
  int32_t place[kPerLane];

  __device__ __forceinline__ explicit ExpertConstants(const SelectExpertsParams& p) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = i * 32 + static_cast<int>(threadIdx.x % 32);
      bias[i] = p.correction_bias && e < p.num_logits() ? p.correction_bias[e] : 0.0f;
      place[i] = p.places && e < p.num_experts ? p.places[e] : e;
    }
  }
};

// Writes one slot of a token. `written`: the id to which `id` is mapped. If `copy` is not null,
// `written` is also stored there.
__device__ __forceinline__ void WriteChoice(const SelectExpertsParams& p, int64_t token, int slot,
                                            int id, int32_t written, float weight, int32_t* copy) {
  const int64_t place = token * p.top_k + slot;
  if (p.logical) p.logical[place] = id;
  p.ids[place] = written;
  if (copy != nullptr) copy[place] = written;
  p.weights[place] = weight;
  if (!IsRecorded(p.record, token)) return;
  const int physical = id >= 0 && p.record.physical_of ? p.record.physical_of[id] : id;
  RecordChoice(p.record, token, slot, p.top_k, id, physical);
}

__device__ __forceinline__ bool IsBad(const SelectExpertsParams& p, int expert, float score,
                                      float bias) {
  if (expert >= p.num_logits()) return false;
  return !isfinite(score) || !(isfinite(bias) || bias == MinusInfinity());
}

// Called by one lane of the token's warp. No atomics are needed: only this warp and later kernels
// write the token's record.
__device__ __forceinline__ void RecordFault(const FaultRecords& faults, int64_t token, int expert) {
  if (faults.records == nullptr || token < faults.begin || token >= faults.end) return;
  int32_t* record = faults.records + faults.index[token - faults.begin];
  if (*record == 0) *record = faults.of_expert_0 + expert;
}

// What a lane has selected for slot `lane` of its token: the expert, the id that is written for it,
// and its weight. `chosen`, the same in all lanes: number of slots that have an expert; they come
// first.
struct Slot {
  int id = -1, written = -1, chosen = 0;
  float weight = 0.0f;
};

// Selects the experts of one token by SparseMixer (RouterConfig). `left`: the logits, −∞ for ids
// that do not exist; overwritten.
template <int kPerLane>
__device__ __forceinline__ Slot SelectBySparseMixer(const SelectExpertsParams& p,
                                                    const ExpertConstants<kPerLane>& constants,
                                                    float (&left)[kPerLane]) {
  const int lane = threadIdx.x % 32;
  Slot slot;
  for (int j = 0; j < p.top_k; ++j) {
    Best own = {MinusInfinity(), -1};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (left[i] > own.value) own = {left[i], i * 32 + lane};
    const int best = WarpBest(own);
    if (best < 0) break;
    const float largest = WarpMax(own.value);
    float sum = 0.0f;  // over the remaining logits near the largest one
    int32_t place = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float x = left[i];
      const bool far = (largest - x) / fmaxf(fabsf(x), largest) > 2.0f * p.jitter;
      if (x != MinusInfinity() && !far) sum += expf(x - largest);
      if (best != i * 32 + lane) continue;
      place = constants.place[i];
      left[i] = MinusInfinity();
    }
    sum = WarpSum(sum);
    place = __shfl_sync(kAll, place, best % 32);
    if (lane == j) {
      slot.id = best;
      slot.written = place;
      slot.weight = 1.0f / sum;
    }
    ++slot.chosen;
  }
  return slot;
}

// ln(1 + e^x) is x in float32 where x is large.
__device__ __forceinline__ float SqrtSoftplus(float x) {
  return sqrtf(x > 20.0f ? x : log1pf(expf(x)));
}

// Takes the experts of one token from the table. `logits`: of the token. An id that is not in the
// table gives the experts of the last one, so that no memory outside is read.
static __device__ Slot LookUp(const SelectExpertsParams& p, int64_t token, const float* logits) {
  const int lane = threadIdx.x % 32;
  Slot slot;
  slot.chosen = p.top_k;
  if (lane >= p.top_k) return slot;
  const auto id = static_cast<int64_t>(p.token_ids[token * p.token_stride]);
  slot.id = p.token_experts[min(max(id, int64_t{0}), p.token_rows - 1) * p.top_k + lane];
  slot.written = p.places ? p.places[slot.id] : slot.id;
  slot.weight = SqrtSoftplus(logits[slot.id]);
  return slot;
}

// Selects the experts of one token by their scores. `score`: the logits, −∞ for ids that do not
// exist; overwritten. `shared_choice`: as in SelectForToken.
template <int kPerLane>
__device__ __forceinline__ Slot SelectByScore(const SelectExpertsParams& p,
                                              const ExpertConstants<kPerLane>& constants,
                                              float (&score)[kPerLane], float* shared_choice) {
  const int lane = threadIdx.x % 32;
  if (p.scoring == 0) {
    float largest = MinusInfinity(), sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) largest = fmaxf(largest, score[i]);
    largest = WarpMax(largest);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const bool exists = i * 32 + lane < p.num_logits();
      score[i] = exists ? expf(score[i] - largest) : 0.0f;
      sum += score[i];
    }
    sum = WarpSum(sum);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] /= sum;
  } else if (p.scoring == 1) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] = 1.0f / (1.0f + expf(-score[i]));
  } else if (p.scoring == kSqrtSoftplusScoring) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] = SqrtSoftplus(score[i]);
  }
  float choice[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    choice[i] = e < p.num_logits() ? score[i] : MinusInfinity();
    if (p.correction_bias && e < p.num_logits()) choice[i] += constants.bias[i];
  }
  if (p.num_groups > 1) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) shared_choice[i * 32 + lane] = choice[i];
    __syncwarp();
    const uint32_t groups = BestGroups(p, shared_choice, lane);
    const int size = p.num_experts / p.num_groups;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = i * 32 + lane;
      if (e < p.num_experts && !(groups >> (e / size) & 1)) choice[i] = MinusInfinity();
    }
  }

  Slot slot;
  for (int j = 0; j < p.top_k; ++j) {
    Best own = {MinusInfinity(), -1};
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (choice[i] > own.value) own = {choice[i], i * 32 + lane};
    const int best = WarpBest(own);
    if (best < 0) break;
    float mine = 0.0f;
    int32_t place = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (best != i * 32 + lane) continue;
      mine = score[i];
      place = constants.place[i];
      choice[i] = MinusInfinity();
    }
    mine = __shfl_sync(kAll, mine, best % 32);
    place = __shfl_sync(kAll, place, best % 32);
    if (lane == j) {
      slot.id = best;
      slot.written = place;
      slot.weight = mine;
    }
    ++slot.chosen;
  }
  return slot;
}

// Empties the slots of experts without computation, and stores the sum of their weights. Slots are
// added in order, as in RemoveZeroExperts of moe/router/router.h.
__device__ __forceinline__ void RemoveZeroExperts(const SelectExpertsParams& p, int64_t token,
                                                  Slot& slot) {
  const bool removed = slot.id >= p.num_experts;
  const float weight = removed ? slot.weight : 0.0f;
  float sum = 0.0f;
  for (int j = 0; j < slot.chosen; ++j) sum += __shfl_sync(kAll, weight, j);
  if (threadIdx.x % 32 == 0) p.zero_weights[token] = sum;
  if (!removed) return;
  slot.id = slot.written = -1;
  slot.weight = 0.0f;
}

// One warp selects the experts of one token; `shared_choice` [32 kPerLane] is private to the warp.
// Element i of a lane's arrays is for expert 32 i + lane. A token with a score that is not finite
// gets experts 0 to top_k - 1 with weights NaN. The model's logits for the token are then NaN on
// every rank, which ends its request. `copy`: [tokens, top_k] or null; the ids are also written
// there.
template <int kPerLane>
__device__ __forceinline__ void SelectForToken(const SelectExpertsParams& p,
                                               const ExpertConstants<kPerLane>& constants,
                                               int64_t token, float* shared_choice,
                                               int32_t* copy = nullptr) {
  const int lane = threadIdx.x % 32;
  const float* logits = p.logits + token * p.num_logits();

  float score[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    score[i] = e < p.num_logits() ? logits[e] : MinusInfinity();
  }
  bool bad = false;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    bad = bad || IsBad(p, i * 32 + lane, score[i], constants.bias[i]);
  if (__any_sync(kAll, bad)) {  // all lanes take the same branch
    // Finds the expert in a second loop. If the first loop computed its number instead of a bool,
    // registers would be spilled.
    uint32_t first = ~0u;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i)
      if (IsBad(p, i * 32 + lane, score[i], constants.bias[i])) first = i * 32 + lane;
    first = __reduce_min_sync(kAll, first);
    if (lane == 0) RecordFault(p.faults, token, static_cast<int>(first));
    if (lane == 0 && p.zero_experts > 0) p.zero_weights[token] = 0.0f;
    if (lane < p.top_k)
      WriteChoice(p, token, lane, lane, constants.place[0], __int_as_float(0x7fc00000), copy);
    return;
  }
  Slot slot;
  if (p.token_experts != nullptr) {
    slot = LookUp(p, token, logits);
  } else if (p.scoring == kSparseMixerScoring) {
    slot = SelectBySparseMixer<kPerLane>(p, constants, score);
  } else {
    slot = SelectByScore<kPerLane>(p, constants, score, shared_choice);
  }
  const bool has = lane < slot.chosen;
  if (p.scoring == 2) {
    const float largest = WarpMax(has ? slot.weight : MinusInfinity());
    if (has) slot.weight = expf(slot.weight - largest);
    float sum = 0.0f;
    for (int j = 0; j < slot.chosen; ++j) sum += __shfl_sync(kAll, slot.weight, j);
    if (has) slot.weight /= sum;
  }
  if (p.scoring == kTopKSigmoidScoring && has) slot.weight = 1.0f / (1.0f + expf(-slot.weight));
  if (p.renormalize) {
    float sum = 1e-20f;  // avoids division by zero: all sigmoids may be zero
    for (int j = 0; j < slot.chosen; ++j) sum += __shfl_sync(kAll, slot.weight, j);
    if (has) slot.weight /= sum;
  }
  slot.weight = has ? slot.weight * p.scaling : 0.0f;
  if (p.zero_experts > 0) RemoveZeroExperts(p, token, slot);
  if (lane >= p.top_k) return;
  WriteChoice(p, token, lane, slot.id, slot.written, slot.weight, copy);
}

}  // namespace switchyard::cuda::choice
