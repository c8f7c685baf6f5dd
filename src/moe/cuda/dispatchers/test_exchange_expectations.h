// Test assertions that compare an exchange's results with its traffic, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "core/cuda/runtime.h"
#include "moe/cuda/dispatchers/row_exchange.h"
#include "moe/cuda/dispatchers/test_exchange_traffic.h"

namespace switchyard::cuda {

template <typename T>
std::vector<T> ReadGpu(const void* from, int64_t count) {
  std::vector<T> to(count);
  Check(cudaMemcpy(to.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "download");
  return to;
}

// Checks the rows that rank r received. Call it after stream synchronization, with rank r's GPU
// current.
inline void ExpectDispatched(const ExchangeConfig& c, int r, const DispatchedRows& got,
                             const TestTraffic& traffic) {
  const auto& arriving = traffic.ranks[r].arriving;
  const auto counts = ReadGpu<int32_t>(got.counts, c.ranks);
  const int64_t rows = c.ranks * c.max_tokens, bytes = c.dispatched.Bytes(c.hidden);
  const auto ids = ReadGpu<int32_t>(got.ids, rows * c.top_k);
  const auto all_rows = ReadGpu<std::byte>(got.rows, rows * got.row_stride);
  std::vector<float> weights;
  if (c.sum_by_rank) weights = ReadGpu<float>(got.weights, rows * c.top_k);
  std::vector<std::byte> want(bytes);
  for (int s = 0; s < c.ranks; ++s) {
    ASSERT_EQ(counts[s], std::ssize(arriving[s])) << "from " << s;
    const TestTraffic::Rank& from = traffic.ranks[s];
    for (int64_t n = 0; n < counts[s]; ++n) {
      const int64_t row = s * c.max_tokens + n, token = arriving[s][n];
      StoreRow(c.dispatched, from.x.data() + token * c.hidden, c.hidden, want.data());
      ASSERT_EQ(std::memcmp(want.data(), all_rows.data() + row * got.row_stride, bytes), 0)
          << "token " << token << " from " << s;
      for (int j = 0; j < c.top_k; ++j) {
        const int32_t id = traffic.LocalIdOn(r, from.ids[token * c.top_k + j]);
        ASSERT_EQ(ids[row * c.top_k + j], id) << "token " << token << " from " << s;
        if (c.sum_by_rank) {
          ASSERT_EQ(weights[row * c.top_k + j], from.weights[token * c.top_k + j]);
        }
      }
    }
  }
}

inline void ExpectSums(int r, const std::vector<float>& got, const TestTraffic& traffic) {
  const std::vector<float> want = traffic.Sums(r);
  const int64_t hidden = traffic.spec.config.hidden;
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << "token " << i / hidden << " element " << i % hidden << ": " << got[i] << ", want "
        << want[i];
}

}  // namespace switchyard::cuda
