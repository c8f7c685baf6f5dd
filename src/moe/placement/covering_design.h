// Pairwise test design: few combinations that cover every pair of parameter choices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace switchyard {

// Rows [rows][factors] of choices below sizes[factor], such that every pair of choices of any two
// factors occurs in some row. Greedy and deterministic for given sizes.
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

  // A row with the first uncovered pair, and −1 elsewhere.
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

  // The choice for factor f that forms the most uncovered pairs with the choices already in `row`.
  // Ties go to the first of them in an order that begins at the row index.
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
  std::vector<bool> met_;  // [choices_, choices_]
  std::vector<Row> rows_;
};

}  // namespace switchyard
