#include "plan/step_clock.h"

#include <algorithm>
#include <bit>

namespace switchyard::plan {
namespace {

// Half of the power of two that is a 32nd to a 64th of the size; 0 for sizes below 64.
int64_t HalfUnit(int64_t size) {
  const int shift = std::bit_width(static_cast<uint64_t>(size)) - 6;
  return shift > 0 ? int64_t{1} << (shift - 1) : 0;
}

// Rounds to the nearest multiple of that power of two. Rounding up would make all steps longer, and
// an engine near saturation seem overloaded.
int64_t Rounded(int64_t size) {
  const int64_t half = HalfUnit(size);
  return half > 0 ? (size + half) / (2 * half) * (2 * half) : size;
}

// The number of sizes from `size` on that are rounded as it is.
int64_t EqualSizes(int64_t size) {
  const int64_t rounded = Rounded(size);
  return rounded + std::max<int64_t>(1, HalfUnit(rounded)) - size;
}

int64_t DividedUp(int64_t a, int64_t b) { return b > 0 ? (a + b - 1) / b : 0; }

bool Decodes(std::span<const GroupRows> groups) {
  return std::ranges::all_of(groups, [](const GroupRows& g) { return g.prompt == 0; });
}

int64_t MeanRows(std::span<const GroupRows> groups) {
  int64_t rows = 0;
  for (const GroupRows& group : groups) rows += group.rows();
  return DividedUp(rows, std::ssize(groups));
}

}  // namespace

StepShape ShapeOf(const GroupRows& rows, bool decode, double mean_rows) {
  const auto all = static_cast<double>(rows.rows());
  const auto decoding = static_cast<double>(rows.decode);
  const double keys = rows.decode > 0 ? static_cast<double>(rows.decode_keys) / decoding : 1;
  if (decode)
    return {.decode = true,
            .sequences = decoding,
            .rows = all,
            .keys = keys,
            .logit_rows = decoding,
            .mean_rows = mean_rows};
  const double prompt_keys = static_cast<double>(rows.prompt_keys) + 0.5;
  // Prompts of equal lengths: their rows attend to half of their tokens on average.
  const double prompts =
      rows.prompt > 0
          ? std::max(1.0, static_cast<double>(rows.prompt) / std::max(1.0, 2 * prompt_keys))
          : 0;
  return {.decode = false,
          .sequences = std::max(1.0, prompts),
          .rows = all,
          .keys = prompt_keys,
          .logit_rows = prompts + decoding,
          .decode_rows = decoding,
          .decode_keys = keys,
          .mean_rows = mean_rows};
}

size_t ShapeClock::Hash::operator()(const Key& key) const {
  uint64_t hash = 0;
  for (const int64_t part : {key.prompt, key.decode, key.prompt_keys, key.keys, key.mean,
                             key.version, int64_t{key.decodes}})
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15ULL + (hash >> 29);
  return hash ^ hash >> 32;
}

ShapeClock::Key ShapeClock::KeyOf(std::span<const GroupRows> groups, const ExpertShares* loads) {
  const GroupRows& most = *std::ranges::max_element(groups, {}, &GroupRows::rows);
  int64_t keys = most.decode_keys;
  if (Decodes(groups))  // reads of keys determine the slowest group
    keys = std::ranges::max_element(groups, {}, &GroupRows::decode_keys)->decode_keys;
  return {Rounded(most.prompt),
          Rounded(most.decode),
          Rounded(most.prompt_keys),
          Rounded(DividedUp(keys, most.decode)),
          Rounded(MeanRows(groups)),
          loads ? loads->version : -1,
          Decodes(groups)};
}

double ShapeClock::Seconds(std::span<const GroupRows> groups, const ExpertShares* loads) {
  const Key key = KeyOf(groups, loads);
  const auto [entry, added] = known_.try_emplace(key, 0.0);
  if (added) {
    const GroupRows rows = {.prompt = key.prompt,
                            .decode = key.decode,
                            .prompt_keys = key.prompt_keys,
                            .decode_keys = key.keys * key.decode};
    const StepShape shape = ShapeOf(rows, key.decodes, static_cast<double>(key.mean));
    entry->second = costs_.steps(key.decodes, stage_).Of(shape, loads).seconds;
  }
  return entry->second;
}

int64_t ShapeClock::EqualSteps(std::span<const GroupRows> groups) const {
  const GroupRows& most = *std::ranges::max_element(groups, {}, &GroupRows::rows);
  const GroupRows& reads = *std::ranges::max_element(groups, {}, &GroupRows::decode_keys);
  return EqualSizes(DividedUp(reads.decode_keys, most.decode));
}

double OperationClock::Seconds(std::span<const GroupRows> groups, const ExpertShares* loads) {
  const bool decode = Decodes(groups);
  const auto mean = static_cast<double>(MeanRows(groups));
  shapes_.clear();
  for (const GroupRows& group : groups) shapes_.push_back(ShapeOf(group, decode, mean));
  return engine_.Run(shapes_, spans_, loads);
}

}  // namespace switchyard::plan
