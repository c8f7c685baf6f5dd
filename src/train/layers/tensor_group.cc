#include "train/layers/tensor_group.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace switchyard::train {
namespace {

// The number of elements of each rank's share of m rows, with `unit` elements per row.
std::vector<size_t> Counts(int size, int64_t m, int64_t unit) {
  std::vector<size_t> counts(size);
  for (int r = 0; r < size; ++r)
    counts[r] = static_cast<size_t>(EvenPart(m, size, r).size() * unit);
  return counts;
}

}  // namespace

template <typename T>
const T* TensorGroup::Gather(const T* mine, int64_t m, int64_t width, std::vector<T>* room) const {
  if (alone()) return mine;
  room->resize(m * width);
  GatherInto(mine, m, width, room->data());
  return room->data();
}

template <typename T>
void TensorGroup::GatherInto(const T* mine, int64_t m, int64_t width, T* all) const {
  ranks_->AllGatherV(mine, all, Counts(size(), m, width * static_cast<int64_t>(sizeof(T))));
}

template <typename T>
void TensorGroup::Scatter(const T* partial, int64_t m, int64_t width, T* mine) const {
  if constexpr (std::is_same_v<T, float>) {
    ranks_->ReduceScatterV(partial, mine, Counts(size(), m, width));
  } else {
    std::vector<T> every(size() * m * width);
    GatherEqual(partial, m * width, every.data());
    const Range rows = Mine(m);
    for (int64_t i = 0; i < rows.size() * width; ++i) {
      T sum = every[rows.begin * width + i];
      for (int r = 1; r < size(); ++r) sum += every[(r * m + rows.begin) * width + i];
      mine[i] = sum;
    }
  }
}

void TensorGroup::Sum(float* values, int64_t count) const {
  if (!alone()) ranks_->AllReduceSum(values, static_cast<size_t>(count));
}

template <typename T>
void TensorGroup::GatherEqual(const T* values, int64_t count, T* every) const {
  if (alone()) {
    std::copy_n(values, count, every);
    return;
  }
  ranks_->AllGatherV(values, every, std::vector<size_t>(size(), count * sizeof(T)));
}

template const float* TensorGroup::Gather(const float*, int64_t, int64_t,
                                          std::vector<float>*) const;
template const double* TensorGroup::Gather(const double*, int64_t, int64_t,
                                           std::vector<double>*) const;
template void TensorGroup::GatherInto(const float*, int64_t, int64_t, float*) const;
template void TensorGroup::GatherInto(const double*, int64_t, int64_t, double*) const;
template void TensorGroup::Scatter(const float*, int64_t, int64_t, float*) const;
template void TensorGroup::Scatter(const double*, int64_t, int64_t, double*) const;
template void TensorGroup::GatherEqual(const float*, int64_t, float*) const;
template void TensorGroup::GatherEqual(const double*, int64_t, double*) const;

}  // namespace switchyard::train
