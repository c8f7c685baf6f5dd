#include "text/tokenizer/merge_table.h"

#include <bit>

#include "core/check.h"

namespace switchyard {
namespace {

constexpr uint64_t kFree = ~uint64_t{0};  // never a valid pair, since ids are not negative

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t merges)
    : slots_(std::bit_ceil(2 * merges + 2), Slot{kFree, {}}),
      shift_(64 - std::countr_zero(slots_.size())) {}

void MergeTable::Set(int32_t left, int32_t right, PairMerge merge) {
  CHECK(left >= 0 && right >= 0);
  const uint64_t pair = PairOf(left, right);
  slots_[SlotOf(pair)] = {pair, merge};
}

const PairMerge* MergeTable::Find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[SlotOf(PairOf(left, right))];
  return slot.pair == kFree ? nullptr : &slot.merge;
}

// The slot of the pair, or the free slot in which to insert it.
size_t MergeTable::SlotOf(uint64_t pair) const {
  size_t i = (pair * 0x9E3779B97F4A7C15u) >> shift_;  // Fibonacci hashing (Knuth, TAOCP 6.4)
  while (slots_[i].pair != pair && slots_[i].pair != kFree) i = (i + 1) & (slots_.size() - 1);
  return i;
}

}  // namespace switchyard
