// The merges of BPE: pairs of tokens, their results and ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace switchyard {

struct PairMerge {
  int32_t rank;  // lower merges first
  int32_t id;    // id of the merged pair
};

// Flat hash table from pairs of ids, with linear probing: the lookup is the innermost step of
// encoding.
class MergeTable {
 public:
  explicit MergeTable(size_t merges = 0);

  // Sets the merge of a pair or replaces it. There may be at most `merges` distinct pairs.
  void Set(int32_t left, int32_t right, PairMerge merge);
  // Returns null if the pair does not merge.
  const PairMerge* Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair;
    PairMerge merge;
  };

  size_t SlotOf(uint64_t pair) const;

  std::vector<Slot> slots_;  // their number is a power of two; at most half are used
  int shift_;                // 64 - log2 of the number of slots
};

}  // namespace switchyard
