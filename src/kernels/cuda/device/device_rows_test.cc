// Row-wise ops on a GPU against the CPU.
#include <cmath>

#include "kernels/cuda/device/device_testing.h"

namespace switchyard::kernels {
namespace {

class RowsTest : public DeviceTest {};

TEST_F(RowsTest, EveryFormatIsPlacedAndEmbedsWithAFactor) {
  for (int round = 0; round < 90; ++round) {
    const WeightFormat format = kAllFormats[round % std::size(kAllFormats)];
    const int64_t k = random_.Pick<int64_t>({1, 7, 64, 128, 130, 512}), n = 1 + random_.Below(300);
    const bool whole_blocks = random_.Below(2) == 0;
    const WeightView w =
        random_.Weight(format, n, k, whole_blocks ? 128 * random_.Below(2) : random_.Below(130),
                       whole_blocks ? 1 : 1 + random_.Below(2),
                       whole_blocks ? 128 * random_.Below(2) : random_.Pick<int64_t>({0, 3, 32}));
    std::vector<int32_t> ids(round == 0 ? 0 : 50);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_.Below(n + 20)) - 3;
    const int32_t first = 2;
    const float scale = random_.Pick({1.0f, 1.0f, 54.545456f, 0.0f});
    std::vector<float> expected(ids.size() * k);
    cpu_->Embed({.ids = ids.data(),
                 .m = static_cast<int64_t>(ids.size()),
                 .w = w,
                 .first = first,
                 .out = expected.data()});
    for (Device* device : {exact_.get(), fast_.get()}) {
      const WeightView placed = device->Place(w);
      EXPECT_EQ(placed.n, n);
      EXPECT_EQ(placed.k, k);
      EXPECT_TRUE(placed.row0 == 0 && placed.col0 == 0 && placed.row_step == 1);
      const DeviceVector device_ids(*device, ids);
      const DeviceVector out(*device, std::vector<float>(expected.size(), 1.0f));
      device->Embed({.ids = device_ids.data(),
                     .m = static_cast<int64_t>(ids.size()),
                     .w = placed,
                     .first = first,
                     .scale = scale,
                     .out = out.data()});
      std::vector<float> want = expected;
      if (placed.format == WeightFormat::kBF16)
        RoundTo(DType::kBF16, want.data(), static_cast<int64_t>(want.size()), pool_);
      for (float& value : want) value *= scale;
      EXPECT_TRUE(SameBits(out.Read(), want)) << Name(format) << " n " << n << " k " << k;
    }
  }
}

// The numbers of arrays and of moves exceed those of one launch.
TEST_F(RowsTest, RowsMoveAsOnTheCpu) {
  for (const auto& [arrays, moves] : {std::pair{1, 1}, {3, 17}, {100, 9}, {5, 150}, {2, 0}}) {
    std::vector<int64_t> row_bytes;
    std::vector<std::vector<char>> want;
    std::vector<DeviceVector<char>> memory;
    constexpr int32_t kSlots = 400;
    auto state = static_cast<uint32_t>(random_.Below(1000));
    for (int i = 0; i < arrays; ++i) {
      row_bytes.push_back(random_.Pick<int64_t>({4, 16, 6, 3, 256, 1152, 4096, 5000}));
      std::vector<char>& rows = want.emplace_back(kSlots * row_bytes.back());
      for (char& byte : rows)
        byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
      memory.emplace_back(*fast_, rows);
    }
    // Moves of several sequences. Each has a path of rows, which move to its first slots.
    std::vector<RowMove> list;
    for (int32_t first = 0, row = 0, to = 0; std::ssize(list) < moves;) {
      row += 1 + static_cast<int32_t>(random_.Below(3));
      list.push_back({.from = first + row, .to = first + ++to});
      if (random_.Below(5) == 0) first += row + 1, row = to = 0;
      if (first + row > kSlots - 20) break;
    }
    std::vector<RowArray> on_cpu, on_gpu;
    for (int i = 0; i < arrays; ++i) {
      on_cpu.push_back({.data = want[i].data(), .row_bytes = row_bytes[i]});
      on_gpu.push_back({.data = memory[i].data(), .row_bytes = row_bytes[i]});
    }
    cpu_->MoveRows({.arrays = on_cpu, .moves = list});
    fast_->MoveRows({.arrays = on_gpu, .moves = list});
    for (int i = 0; i < arrays; ++i)
      ASSERT_EQ(memory[i].Read(), want[i]) << "array " << i << " of rows of " << row_bytes[i];
  }
}

TEST_F(RowsTest, NormsMatchTheCpuAndDoNotDependOnTheBatch) {
  for (int round = 0; round < 60; ++round) {
    const int64_t m = random_.Pick<int64_t>({0, 1, 2, 7, 33, 300});
    const int64_t n = random_.Pick<int64_t>({1, 3, 64, 128, 192, 1000, 1024, 1025, 2048, 7168});
    const int64_t ldx = n + random_.Pick<int64_t>({0, 0, 1, 4});
    const std::vector<float> x = random_.Normal(m * ldx + 1), weight = random_.Normal(n);
    std::vector<float> expected(m * n);
    RmsNormParams p = {.x = x.data(),
                       .ldx = ldx,
                       .weight = weight.data(),
                       .y = expected.data(),
                       .ldy = n,
                       .m = m,
                       .n = n};
    cpu_->RmsNorm(p);
    const DeviceVector device_x(*exact_, x), device_weight(*exact_, weight), y(*exact_, expected);
    p.x = device_x.data();
    p.weight = device_weight.data();
    p.y = y.data();
    exact_->RmsNorm(p);
    const std::vector<float> got = y.Read();
    for (int64_t i = 0; i < m * n; ++i)
      ASSERT_NEAR(got[i], expected[i], 1e-6 * std::abs(expected[i])) << "m " << m << " n " << n;
    if (m == 0) continue;
    const int64_t row = random_.Below(m);
    p.x += row * ldx;
    p.m = 1;
    exact_->RmsNorm(p);
    EXPECT_TRUE(SameBits(y.Read().data(), &got[row * n], n));
  }
}

TEST_F(RowsTest, LayerNormMatchesTheCpuAndDoesNotDependOnTheBatch) {
  for (int round = 0; round < 60; ++round) {
    const int64_t m = random_.Pick<int64_t>({0, 1, 2, 7, 33, 300});
    const int64_t n = random_.Pick<int64_t>({1, 3, 48, 128, 1000, 1024, 1025, 1030, 2048, 4096});
    const int64_t ldx = n + random_.Pick<int64_t>({0, 0, 1, 4});
    std::vector<float> x = random_.Normal(m * ldx + 1);
    for (float& value : x) value += 5.0f;
    // Weight and bias are halves of one tensor, as in the model.
    const std::vector<float> weight_and_bias = random_.Normal(2 * n);
    std::vector<float> expected(m * n);
    LayerNormParams p = {.x = x.data(),
                         .ldx = ldx,
                         .weight = weight_and_bias.data(),
                         .bias = weight_and_bias.data() + n,
                         .y = expected.data(),
                         .ldy = n,
                         .m = m,
                         .n = n};
    cpu_->LayerNorm(p);
    const DeviceVector device_x(*exact_, x), both(*exact_, weight_and_bias), y(*exact_, expected);
    p.x = device_x.data();
    p.weight = both.data();
    p.bias = both.data() + n;
    p.y = y.data();
    exact_->LayerNorm(p);
    const std::vector<float> got = y.Read();
    for (int64_t i = 0; i < m * n; ++i)
      ASSERT_NEAR(got[i], expected[i], 1e-6 * (1 + std::abs(expected[i])))
          << "m " << m << " n " << n;
    if (m == 0) continue;
    const int64_t row = random_.Below(m);
    p.x += row * ldx;
    p.m = 1;
    exact_->LayerNorm(p);
    EXPECT_TRUE(SameBits(y.Read().data(), &got[row * n], n));
    p.y = device_x.data() + row * ldx;  // in place
    exact_->LayerNorm(p);
    EXPECT_TRUE(SameBits(device_x.Read().data() + row * ldx, &got[row * n], n));
  }
}

TEST_F(RowsTest, SquaresAndScalesMatchTheCpu) {
  for (const int64_t n : {1, 130, 1024, 4096}) {
    for (const int64_t m : {0, 1, 5, 100}) {
      const std::vector<float> x = random_.Normal(m * n), weight = random_.Normal(n);
      std::vector<float> squares(m), scaled = x;
      cpu_->SumSquares({.x = x.data(), .m = m, .n = n, .squares = squares.data()});
      cpu_->ScaleBySquares({.x = scaled.data(),
                            .m = m,
                            .n = n,
                            .squares = squares.data(),
                            .total = 2 * n,
                            .weight = weight.data()});
      const DeviceVector device_x(*exact_, x), device_weight(*exact_, weight);
      const DeviceVector device_squares(*exact_, std::vector<float>(m));
      exact_->SumSquares({.x = device_x.data(), .m = m, .n = n, .squares = device_squares.data()});
      exact_->ScaleBySquares({.x = device_x.data(),
                              .m = m,
                              .n = n,
                              .squares = device_squares.data(),
                              .total = 2 * n,
                              .weight = device_weight.data()});
      const std::vector<float> got = device_x.Read(), got_squares = device_squares.Read();
      for (int64_t i = 0; i < m; ++i)
        ASSERT_NEAR(got_squares[i], squares[i], 1e-6 * squares[i]) << "m " << m << " n " << n;
      for (int64_t i = 0; i < m * n; ++i)
        ASSERT_NEAR(got[i], scaled[i], 1e-6 * std::abs(scaled[i])) << "m " << m << " n " << n;
    }
  }
}

TEST_F(RowsTest, RowsAreCopiedAndAdded) {
  for (int round = 0; round < 30; ++round) {
    const int64_t m = random_.Below(300), n = random_.Pick<int64_t>({1, 5, 64, 576, 4096});
    const int64_t ldx = n + random_.Pick<int64_t>({0, 3, 64}), ldy = n + random_.Below(2) * 4;
    const std::vector<float> x = random_.Normal(301 * std::max(ldx, ldy));
    const std::vector<float> y = random_.Normal(m * ldy + 1);
    std::vector<int32_t> rows(m + 1);
    for (int32_t& row : rows) row = static_cast<int32_t>(random_.Below(301));
    const bool listed = round % 2 == 0;
    std::vector<float> expected = y;
    cpu_->CopyRows({.x = x.data(),
                    .ldx = ldx,
                    .rows = listed ? rows.data() : nullptr,
                    .y = expected.data(),
                    .ldy = ldy,
                    .m = m,
                    .n = n});
    const auto count = static_cast<int64_t>(y.size());
    const DeviceVector device_x(*exact_, x), device_y(*exact_, y);
    const DeviceVector device_rows(*exact_, rows);
    exact_->CopyRows({.x = device_x.data(),
                      .ldx = ldx,
                      .rows = listed ? device_rows.data() : nullptr,
                      .y = device_y.data(),
                      .ldy = ldy,
                      .m = m,
                      .n = n});
    EXPECT_TRUE(SameBits(device_y.Read(), expected)) << "m " << m << " n " << n;
    cpu_->AddInPlace(expected.data(), x.data() + round % 2, count - 1);
    exact_->AddInPlace(device_y.data(), device_x.data() + round % 2, count - 1);
    EXPECT_TRUE(SameBits(device_y.Read(), expected)) << "m " << m << " n " << n;
  }
}

TEST_F(RowsTest, ClampHasTheBitsOfTheCpu) {
  for (const int64_t count : {0, 1, 255, 70'001, 2'000'003}) {
    std::vector<float> x = random_.Normal(count);
    for (size_t i = 0; i < x.size(); i += 97)
      x[i] = random_.Pick({NAN, INFINITY, -INFINITY, 0.75f, -0.75f, -0.0f});
    const DeviceVector device_x(*exact_, x);
    cpu_->Clamp(x.data(), count, 0.75f);
    exact_->Clamp(device_x.data(), count, 0.75f);
    EXPECT_TRUE(SameBits(device_x.Read(), x)) << "count " << count;
  }
}

TEST_F(RowsTest, SigmoidsMultiplyAsOnTheCpu) {
  for (int round = 0; round < 20; ++round) {
    const int64_t count = random_.Pick<int64_t>({0, 1, 3, 4, 255, 70'001, 2'000'000});
    const int64_t skipped = round % 3 == 0 ? 1 : 0;  // an element that makes pointers unaligned
    const std::vector<float> x = random_.Normal(count + skipped);
    std::vector<float> gate = random_.Normal(count + skipped, 5.0f), want = x;
    for (size_t i = 0; i < gate.size(); i += 97)
      gate[i] = random_.Pick({INFINITY, -INFINITY, 100.0f, -100.0f, 0.0f});
    const DeviceVector device_x(*exact_, x), device_gate(*exact_, gate);
    cpu_->MultiplyBySigmoid(want.data() + skipped, gate.data() + skipped, count);
    exact_->MultiplyBySigmoid(device_x.data() + skipped, device_gate.data() + skipped, count);
    const std::vector<float> got = device_x.Read();
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i])) << "count " << count << " at " << i;
  }
}

TEST_F(RowsTest, SigmoidsMultiplyRowsAsOnTheCpu) {
  for (int round = 0; round < 12; ++round) {
    const int64_t rows = random_.Pick<int64_t>({0, 1, 3, 255, 5000});
    const int64_t n = random_.Pick<int64_t>({1, 12, 128, 131});
    const std::vector<float> x = random_.Normal(rows * n), gate = random_.Normal(rows, 5.0f);
    std::vector<float> want = x;
    const DeviceVector device_x(*exact_, x), device_gate(*exact_, gate);
    cpu_->MultiplyRowsBySigmoid(want.data(), gate.data(), rows, n);
    exact_->MultiplyRowsBySigmoid(device_x.data(), device_gate.data(), rows, n);
    const std::vector<float> got = device_x.Read();
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i])) << rows << " x " << n << " at " << i;
  }
}

TEST_F(RowsTest, ClearEntriesClearsListedOnes) {
  for (const int64_t count : {0, 1, 300, 5000}) {
    const std::vector<int32_t> values = random_.Shuffled(6000);
    std::vector<int32_t> index = random_.Shuffled(6000), want = values;
    index.resize(count);
    const DeviceVector device_values(*exact_, values), device_index(*exact_, index);
    cpu_->ClearEntries(want.data(), index.data(), count);
    exact_->ClearEntries(device_values.data(), device_index.data(), count);
    EXPECT_EQ(device_values.Read(), want) << "count " << count;
  }
}

TEST_F(RowsTest, RopeMatchesTheCpu) {
  for (int round = 0; round < 30; ++round) {
    const int64_t m = random_.Pick<int64_t>({0, 1, 17, 200}), heads = 1 + random_.Below(9);
    const int64_t head_dim = random_.Pick<int64_t>({64, 128, 192});
    const int64_t rotary = random_.Pick<int64_t>({2, 32, 64}), ldx = heads * head_dim + 4;
    std::vector<float> x = random_.Normal(m * ldx);
    const std::vector<float> table = random_.Normal(100 * rotary);
    std::vector<int32_t> positions(m);
    for (int32_t& position : positions) position = static_cast<int32_t>(random_.Below(100));
    const DeviceVector device_x(*exact_, x), device_table(*exact_, table);
    const DeviceVector device_positions(*exact_, positions);
    RopeParams p = {.x = x.data(),
                    .ldx = ldx,
                    .m = m,
                    .heads = heads,
                    .head_dim = head_dim,
                    .rotary_dim = rotary,
                    .rotary_offset = head_dim - rotary - random_.Below(head_dim - rotary + 1),
                    .interleaved = round % 2 == 0,
                    .positions = positions.data(),
                    .cos_sin = table.data()};
    p.rotary_offset = std::max<int64_t>(p.rotary_offset, 0);
    cpu_->Rope(p);
    p.x = device_x.data();
    p.positions = device_positions.data();
    p.cos_sin = device_table.data();
    exact_->Rope(p);
    const std::vector<float> got = device_x.Read();
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(got[i], x[i], 4e-6) << i;
  }
}

TEST_F(RowsTest, StoreKvRoundsAsTheCpuAndLeavesOutNegativeSlots) {
  for (int round = 0; round < 30; ++round) {
    const DType dtype = random_.Pick({DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3});
    const int64_t m = random_.Below(200), n = random_.Pick<int64_t>({1, 6, 128, 512, 576});
    const std::vector<float> scales = {0.03f, 1.7f, 11.0f, 0.9f};
    const DeviceVector device_scales(*exact_, scales);
    const bool scaled = dtype == DType::kF8E4M3 && n > 6 && random_.Below(3) > 0;
    const int64_t heads = random_.Pick<int64_t>({1, 2, 4});
    const int64_t ldx = n + random_.Pick<int64_t>({0, 1, 4});
    const std::vector<float> x = random_.Normal(m * ldx + 1, 100.0f);
    const std::vector<int32_t> order = random_.Shuffled(300);
    std::vector<int32_t> slots(order.begin(), order.begin() + m);
    std::vector<uint8_t> expected(300 * n * SizeOf(dtype), 3);
    const DeviceVector cache(*exact_, expected);
    const DeviceVector device_x(*exact_, x);
    StoreKvParams p = {.x = x.data(), .ldx = ldx, .m = m, .n = n, .dtype = dtype, .heads = heads};
    p.scales = scaled ? scales.data() : nullptr;
    p.slots = slots.data();
    p.cache = expected.data();
    if (m > 1) p.m = m - 1;  // the last row has no slot
    cpu_->StoreKv(p);
    if (m > 1) slots.back() = -1;
    const DeviceVector device_slots(*exact_, slots);
    p.m = m;
    p.x = device_x.data();
    p.slots = device_slots.data();
    p.cache = cache.data();
    p.scales = scaled ? device_scales.data() : nullptr;
    exact_->StoreKv(p);
    EXPECT_TRUE(cache.Read() == expected) << Name(dtype) << " m " << m << " n " << n;
  }
}

}  // namespace
}  // namespace switchyard::kernels
