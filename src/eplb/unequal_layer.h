// A layer's experts on unequal ranks: rank times of a placement, and searches for better ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eplb/types.h"

namespace switchyard {

// Times of a layer's experts on each rank, if all of their rows are there. A value type. Bins are
// the living ranks.
class ExpertCosts {
 public:
  // `load` [experts] rows per step; `with_rows` [experts] passes of a step in which the expert has
  // rows.
  ExpertCosts(const std::vector<RankSlots>& bins, const RankTopology& topology,
              std::span<const double> load, std::span<const double> with_rows);

  int bins() const { return bins_; }
  int experts() const { return experts_; }
  double Rows(int bin, int32_t expert) const { return rows_[Index(bin, expert)]; }
  double Reads(int bin, int32_t expert) const { return reads_[Index(bin, expert)]; }
  double Whole(int bin, int32_t expert) const { return Rows(bin, expert) + Reads(bin, expert); }
  double WholeBin(int bin) const;  // of all experts

 private:
  size_t Index(int bin, int32_t expert) const {
    return static_cast<size_t>(bin) * experts_ + expert;
  }
  int bins_, experts_;
  std::vector<double> rows_, reads_;  // [bins, experts]
};

// The experts of each bin, at most once each. A value type.
struct BinExperts {
  std::vector<std::vector<int32_t>> of_bin;  // [bins]
  std::vector<std::vector<int>> bins_of;     // [experts]

  BinExperts(int bins, int experts) : of_bin(bins), bins_of(experts) {}
  // Takes the living ranks' slots of `map` [physical]; ignores ids outside [0, experts) and second
  // slots of a rank for one expert.
  BinExperts(const std::vector<RankSlots>& bins, int experts, std::span<const int32_t> map);

  bool Holds(int bin, int32_t expert) const;
  void Add(int bin, int32_t expert);
  void Remove(int bin, int32_t expert);
};

// [bins] the time of each bin. Each expert with replicas is divided over its bins, or is whole on
// one of them, whichever makes the slowest bin faster.
std::vector<double> BinTimes(const ExpertCosts& costs, const BinExperts& experts);
// The largest of BinTimes.
double SlowestTime(const ExpertCosts& costs, const BinExperts& experts);

// Searches by the times of `costs`. Borrows its arguments. Single-threaded.
class UnequalSearch {
 public:
  // `budget`: maximum number of swaps and moves of each improvement, and of replicas that are
  // chosen by the times of ranks.
  UnequalSearch(const std::vector<RankSlots>& bins, const ExpertCosts& costs, int budget);

  // The most loaded experts on the fastest bins (`fastest_first`), or each expert on the bin that
  // then has the least time. Improved, and with every slot filled.
  BinExperts FromScratch(bool fastest_first) const;
  // Swaps experts with one replica between the slowest bin and others, and moves them to free
  // slots, while the slowest bin becomes faster. Returns the number of changes, at most `most`.
  int Improve(int most, BinExperts* experts) const;

 private:
  struct Change {
    int to = -1;                      // bin; −1: none
    int32_t leaves = -1, comes = -1;  // comes −1: a move into a free slot
    double slowest = 0;               // of the two bins, afterwards
  };
  Change BestChange(int slowest, const std::vector<double>& times, const BinExperts& experts) const;
  bool HasRoom(int bin, const BinExperts& experts) const;
  void PlaceFastestFirst(BinExperts* experts) const;
  void PlaceByTime(BinExperts* experts) const;
  bool AddBestReplica(BinExperts* experts) const;
  void FillSlots(BinExperts* experts) const;

  const std::vector<RankSlots>& bins_;
  const ExpertCosts& costs_;
  const int budget_;
  std::vector<int32_t> hottest_;  // experts, most loaded first
};

}  // namespace switchyard
