// Selected keys of earlier rows, on a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cuda/attention/select_keys.h"
#include "kernels/testing.h"

namespace switchyard::cuda {
namespace {

using kernels::Random;

DeviceMemory OnDevice(const std::vector<int32_t>& from) {
  DeviceMemory memory(from.size() * sizeof(int32_t));
  CopyToDevice(memory.data(), from.data(), from.size() * sizeof(int32_t), "copy to the GPU");
  return memory;
}

// One row for each sequence, whose lengths are near topk. The first row belongs to no sequence.
struct InheritedRows {
  int32_t topk, page_size, rows, most_pages;
  std::vector<int32_t> keys = {0}, parents = {0}, pages, selected;

  explicit InheritedRows(Random& random) {
    topk = static_cast<int32_t>(1 + random.Below(2100));
    page_size = random.Pick<int32_t>({1, 16, 64});
    rows = static_cast<int32_t>(2 + random.Below(40));
    most_pages = (topk + 4 + page_size - 1) / page_size;
    pages = random.Shuffled(rows * most_pages);
    for (int32_t row = 1; row < rows; ++row) {
      keys.push_back(static_cast<int32_t>(std::max<int64_t>(1, topk - 1 + random.Below(5))));
      parents.push_back(static_cast<int32_t>(random.Below(rows)));
    }
    selected.resize(int64_t{rows} * topk);
    std::iota(selected.begin(), selected.end(), 1 << 20);
  }
  int32_t SlotOf(int32_t row, int32_t key) const {
    return pages[row * most_pages + key / page_size] * page_size + key % page_size;
  }
  int32_t Want(int32_t row, int32_t key) const {
    if (keys[row] > topk + 1) return selected[parents[row] * topk + key];
    return key < keys[row] ? SlotOf(row, key) : selected[row * topk + key];
  }
  // `columns`: those that fit in the scratch buffer.
  std::vector<int32_t> Run(int64_t columns) const {
    std::vector<int32_t> row_begin(rows), one(rows, 1), row_sequence(rows);
    std::iota(row_begin.begin(), row_begin.end(), 0);
    row_sequence = row_begin;
    row_sequence[0] = -1;
    one[0] = 0;
    const DeviceMemory begin = OnDevice(row_begin), count = OnDevice(one), length = OnDevice(keys),
                       of_pages = OnDevice(pages), sequence = OnDevice(row_sequence),
                       of_parents = OnDevice(parents), result = OnDevice(selected),
                       scratch(columns * rows * sizeof(int32_t));
    const Stream stream;
    InheritKeys(
        {.parents = of_parents.as<int32_t>(), .topk = topk, .selected = result.as<int32_t>()},
        {.row_begin = begin.as<int32_t>(),
         .rows = count.as<int32_t>(),
         .kv_len = length.as<int32_t>(),
         .pages = of_pages.as<int32_t>(),
         .row_sequence = sequence.as<int32_t>(),
         .num_sequences = rows,
         .num_rows = rows,
         .max_pages = most_pages,
         .page_size = page_size},
        stream.get(), {scratch.data(), scratch.bytes()});
    stream.Synchronize();
    std::vector<int32_t> got(selected.size());
    Check(
        cudaMemcpy(got.data(), result.data(), got.size() * sizeof(int32_t), cudaMemcpyDeviceToHost),
        "copy of the result");
    return got;
  }
};

TEST(CudaInheritKeysTest, RowsTakeTheKeysOfTheirParents) {
  if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  UseDevice(0);
  Random random(8);
  for (int round = 0; round < 20; ++round) {
    const InheritedRows r(random);
    const std::vector<int32_t> got = r.Run(random.Pick<int64_t>({1, 100, 4096}));
    for (int32_t row = 0; row < r.rows; ++row)
      for (int32_t key = 0; key < r.topk; ++key)
        ASSERT_EQ(got[row * r.topk + key], r.Want(row, key))
            << r.keys[row] << " keys, " << r.topk << " selected";
  }
}

}  // namespace
}  // namespace switchyard::cuda
