// Pairwise test design: few combinations that cover every pair of parameter choices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace switchyard {

// Rows [rows][factors] of choices; the choice for a factor is less than sizes[factor]. Every pair
// of choices of any two factors occurs in some row. Greedy and deterministic for given sizes.
class CoveringDesign {
 public:
  using Row = std::vector<int>;

  explicit CoveringDesign(std::vector<int> sizes) : sizes_(std::move(sizes)) {
    for (size_t f = 0; f < sizes_.size(); ++f) {
      first_.push_back(choices_);
      choices_ += sizes_[f];
    }
    met_.assign(choices_ * choices_, false);
    Row row(sizes_.size());
    while (NextUncoveredRow(&row)) {
      for (size_t f = 0; f < sizes_.size(); ++f)
        if (row[f] < 0) row[f] = BestChoice(row, f);
      MarkCovered(row);
      rows_.push_back(row);
    }
  }
  std::vector<Row> rows() const { return rows_; }

 private:
  bool Covered(size_t f, int a, size_t g, int b) const {
    return met_[(first_[f] + a) * choices_ + first_[g] + b];
  }

  // Sets *row to a row with the first uncovered pair, and −1 for all other factors. Returns false
  // if all pairs are covered.
  bool NextUncoveredRow(Row* row) const {
    for (size_t f = 0; f < sizes_.size(); ++f)
      for (size_t g = f + 1; g < sizes_.size(); ++g)
        for (int a = 0; a < sizes_[f]; ++a)
          for (int b = 0; b < sizes_[g]; ++b) {
            if (Covered(f, a, g, b)) continue;
            std::ranges::fill(*row, -1);
            (*row)[f] = a;
            (*row)[g] = b;
            return true;
          }
    return false;
  }

  // Returns the choice for factor f that forms the most uncovered pairs with the choices already in
  // `row`. Choices are tried in an order that starts at the row index; ties go to the first one
  // tried.
  int BestChoice(const Row& row, size_t f) const {
    int best = 0, most = -1;
    for (int i = 0; i < sizes_[f]; ++i) {
      const int choice = (i + static_cast<int>(rows_.size())) % sizes_[f];
      int meets = 0;
      for (size_t g = 0; g < sizes_.size(); ++g)
        if (g != f && row[g] >= 0 && !Covered(f, choice, g, row[g])) ++meets;
      if (meets <= most) continue;
      best = choice;
      most = meets;
    }
    return best;
  }

  void MarkCovered(const Row& row) {
    for (size_t f = 0; f < sizes_.size(); ++f)
      for (size_t g = 0; g < sizes_.size(); ++g)
        met_[(first_[f] + row[f]) * choices_ + first_[g] + row[g]] = true;
  }

  std::vector<int> sizes_;
  std::vector<size_t> first_;  // [factors] index of each factor's first choice among all choices
  size_t choices_ = 0;
  std::vector<bool> met_;  // [choices_, choices_] whether a pair is covered
  std::vector<Row> rows_;
};

}  // namespace switchyard
