// When a GPU computes the experts of CPU ranks itself, with weights that it reads over its link
// (--stream-experts).
//
// A long chunk of prompts has rows of nearly all experts. CPUs take a time in proportion to the
// rows; the GPU takes the time of the upload, which does not depend on the rows. Each pass takes
// one of the two ways in all layers. The choice depends on numbers of tokens that all ranks know,
// so all ranks make the same one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/range.h"
#include "moe/options.h"

namespace switchyard {

// --stream-experts as a number of tokens; 0: off, −1: auto. Error kInvalid names the flag.
int64_t ParseStreamExperts(const std::string& flag);

// What decides between the two ways, for one layer.
struct StreamCosts {
  int top_k = 1;
  int uploaded = 1;           // experts that the GPU does not hold
  double cpu_share = 1;       // part of the pairs of a token and an expert that CPUs would compute
  double expert_bytes = 0;    // weights of an expert in the GPU's format
  double flops_of_row = 0;    // of one expert
  double cpu_flops = 0;       // per second, of all CPU ranks together
  double link_bandwidth = 0;  // bytes per second
};
// The number of tokens in a round from which on reading all experts of the CPUs takes less time
// than their products on the CPUs. At least kMinStreamTokens.
int64_t BreakEvenTokens(const StreamCosts& costs);
constexpr int64_t kMinStreamTokens = 64;
// The part of all rows that experts from number `first` on get if expert e has the weight
// (e + 1)^−exponent. 0 is uniform routing.
double ShareOfColdExperts(int experts, int first, double exponent);

// Whether a pass streams experts. `tokens`, `decoding` [dp]: its tokens of each attention group,
// and those of decoding sequences. Passes that only decode never stream, because they may be CUDA
// graphs. A pass in several rounds uploads the experts in each round, so the mean number of tokens
// in a round counts.
bool StreamsExperts(const MoeOptions& options, std::span<const int64_t> tokens,
                    std::span<const int64_t> decoding);

// The number of experts in one of the two buffers of uploads.
int StreamGroup(int experts);

// Which experts of a layer a pass streams, and where it finds those of each slot. Group g has the
// experts [g · group, (g + 1) · group) of `experts`.
struct StreamPlaces {
  std::vector<int32_t> experts;  // logical, ascending: those that the GPU does not hold
  // [1 + most groups, physical experts]: row 0 has the local index of each physical expert that the
  // GPU computes with its own weights, also if the slot is on another rank. Row 1 + g has the index
  // in group g. −1: the expert is in another row.
  std::vector<int32_t> table;
};
// `physical_to_logical`: the placement. `own`: the physical experts of the GPU.
StreamPlaces PlaceStreams(std::span<const int32_t> physical_to_logical, Range own, int num_experts);

}  // namespace switchyard
