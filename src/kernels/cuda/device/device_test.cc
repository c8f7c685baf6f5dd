// Memory, graph capture and sequence tables of a GPU device.
#include "kernels/device.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "core/duration.h"
#include "core/error.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/cuda_device_sequences.h"
#include "kernels/cuda/device/device_testing.h"

namespace switchyard::kernels {
namespace {

TEST_F(DeviceTest, LargeCopiesArriveWholeAndTheSourceMayChangeAtOnce) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{1000003}, size_t{9000001}}) {
    std::vector<uint32_t> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
    const std::vector<uint32_t> expected = values;
    const std::shared_ptr<void> memory = exact_->Allocate(count * 4);
    exact_->CopyIn(memory.get(), values.data(), count * 4);
    std::fill(values.begin(), values.end(), 7u);
    exact_->CopyOut(values.data(), memory.get(), count * 4);
    EXPECT_TRUE(values == expected) << count;
  }
}

TEST_F(DeviceTest, ManySmallCopiesKeepTheirOrder) {
  DeviceVector<int32_t> target(*exact_, std::vector<int32_t>(1000, 0));
  std::vector<int32_t> values(1000);
  for (int32_t round = 1; round <= 5000; ++round) {
    std::fill(values.begin(), values.end(), round);
    exact_->CopyIn(target.data(), values.data(), values.size() * 4);
  }
  EXPECT_EQ(target.Read(), values);
}

TEST_F(DeviceTest, MemoryIsZeroedAndFreedWithItsLastReference) {
  std::shared_ptr<void> memory = exact_->Allocate(1 << 20);
  std::vector<uint8_t> bytes(1 << 20, 1);
  exact_->CopyOut(bytes.data(), memory.get(), bytes.size());
  EXPECT_TRUE(bytes == std::vector<uint8_t>(1 << 20, 0));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 256, 0u);
  std::thread([memory = std::move(memory)]() mutable { memory.reset(); }).join();
  exact_->Synchronize();
}

TEST_F(DeviceTest, AReplayedPassReadsTheCurrentMemory) {
  const int64_t count = 1000;
  const DeviceVector x(*exact_, std::vector<float>(count, 1.0f));
  const DeviceVector y(*exact_, std::vector<float>(count, 0.0f));
  int calls = 0;
  const auto pass = [&] {
    ++calls;
    exact_->AddInPlace(y.data(), x.data(), count);
  };
  float sum = 0;
  for (int round = 1; round <= 10; ++round) {
    const std::vector<float> values(count, static_cast<float>(round));
    exact_->CopyIn(x.data(), values.data(), count * 4);
    exact_->Run(5, pass);
    sum += static_cast<float>(round);
    EXPECT_EQ(y.Read(), std::vector<float>(count, sum));
  }
  EXPECT_LE(calls, 2);
  calls = 0;
  for (int round = 0; round < 3; ++round) exact_->Run(0, pass);
  EXPECT_EQ(calls, 3);
}

TEST_F(DeviceTest, AVariantOfAPassIsCapturedInItsFirstCall) {
  const DeviceVector x(*exact_, std::vector<float>(64, 1.0f));
  const DeviceVector y(*exact_, std::vector<float>(64, 0.0f));
  int calls = 0;
  const auto pass = [&](int adds) {
    return [&, adds] {
      ++calls;
      for (int i = 0; i < adds; ++i) exact_->AddInPlace(y.data(), x.data(), 64);
    };
  };
  exact_->Run(3 | Device::kVariant, pass(10));  // before the pass itself: runs directly
  exact_->Run(4, pass(1));
  EXPECT_EQ(calls, 2);
  for (int round = 0; round < 3; ++round) {
    exact_->Run(4 | Device::kVariant, pass(10));
    exact_->Run(4, pass(1));
  }
  EXPECT_EQ(calls, 4);  // one capture each
  EXPECT_EQ(y.Read(), std::vector<float>(64, 44.0f));
}

TEST_F(DeviceTest, MorePassesThanAreKeptAndThoseThatThrow) {
  const DeviceVector x(*exact_, std::vector<float>(64, 1.0f));
  const DeviceVector y(*exact_, std::vector<float>(64, 0.0f));
  for (int round = 0; round < 3; ++round) {
    for (uint64_t key = 1; key <= 200; ++key) {
      exact_->Run(key, [&] { exact_->AddInPlace(y.data(), x.data(), 64); });
    }
  }
  EXPECT_EQ(y.Read(), std::vector<float>(64, 600.0f));
  for (int round = 0; round < 4; ++round) {
    EXPECT_THROW(exact_->Run(7777,
                             [&] {
                               exact_->AddInPlace(y.data(), x.data(), 64);
                               throw Invalid("no");
                             }),
                 Error);
  }
  bool fails = false;
  const auto pass = [&] {
    exact_->AddInPlace(y.data(), x.data(), 64);
    if (fails) throw Invalid("no");
  };
  exact_->Run(7778, pass);
  fails = true;
  EXPECT_THROW(exact_->Run(7778, pass), Error);
  fails = false;
  exact_->Run(7778, pass);
  exact_->Run(7778, pass);
  EXPECT_EQ(y.Read(), std::vector<float>(64, 607.0f));
}

// The function has the deadline of waits for kernels of other ranks.
TEST_F(DeviceTest, EvictedPassesAndGrowingBuffersCallTheWaitFunction) {
  int waits = 0;
  cuda::CudaDevice::From(*exact_).SetWait([&](cudaEvent_t event) {
    ++waits;
    cuda::Check(cudaEventSynchronize(event), "wait");
  });
  const DeviceVector x(*exact_, std::vector<float>(256, 1.0f));
  const DeviceVector y(*exact_, std::vector<float>(256, 0.0f));
  WeightView w = exact_->Place(random_.Weight(WeightFormat::kF32, 64, 256));
  w.activation = ActivationFormat::kFp8Token;  // rounded rows are in a buffer
  const LinearParams product = {
      .x = x.data(), .ldx = 256, .w = w, .y = y.data(), .ldy = 64, .m = 1};
  waits = 0;
  exact_->Linear(product);
  EXPECT_EQ(waits, 1);
  exact_->Linear(product);
  EXPECT_EQ(waits, 1);  // the buffer is large enough
  const auto add = [&] { exact_->AddInPlace(y.data(), x.data(), 256); };
  constexpr uint64_t kKept = 128;
  for (uint64_t key = 1; key <= kKept; ++key) exact_->Run(key, add);
  EXPECT_EQ(waits, 1);
  exact_->Run(kKept + 1, add);
  EXPECT_EQ(waits, 2);
  cuda::CudaDevice::From(*exact_).SetWait(
      [](cudaEvent_t) { throw Error(ErrorKind::kTimeout, "no"); });
  EXPECT_THROW(exact_->Run(kKept + 2, add), Error);
  cuda::CudaDevice::From(*exact_).SetWait({});
}

// Tables that exceed the page-locked memory of one copy.
TEST_F(DeviceTest, SequenceTablesOfAnySizeArriveWhole) {
  constexpr int32_t kRows = (1 << 20) + 77, kOther = 5, kKeys = kRows + 100, kOtherKeys = 50;
  const cuda::Stream stream;
  cuda::Staging staging(stream.get());
  const cuda::Graphs graphs(stream.get(), [&] { stream.Synchronize(); });
  cuda::Sequences sequences({.max_tokens = kRows, .max_sequences = 3, .max_pages = kKeys}, staging,
                            graphs, stream.get());
  std::vector<int32_t> pages(kKeys);
  std::iota(pages.begin(), pages.end(), 3);
  const std::vector<SequenceSpan> spans = {
      {.row_begin = 0, .rows = kRows - kOther, .kv_len = kKeys, .pages = pages.data()},
      {.row_begin = kRows - kOther,
       .rows = kOther,
       .kv_len = kOtherKeys,
       .pages = pages.data() + 9}};
  sequences.Set(spans, /*page_size=*/1);
  const cuda::SequenceTable& table = sequences.table();
  const auto read = [&](const int32_t* from, size_t count) {
    std::vector<int32_t> values(count);
    staging.CopyOut(values.data(), from, count * sizeof(int32_t));
    return values;
  };
  std::vector<int32_t> row_sequence(kRows, 0);
  std::fill_n(row_sequence.end() - kOther, kOther, 1);
  EXPECT_TRUE(read(table.row_sequence, kRows) == row_sequence);
  EXPECT_EQ(read(table.kv_len, 2), (std::vector<int32_t>{kKeys, kOtherKeys}));
  EXPECT_TRUE(read(table.pages, kKeys) == pages);
  EXPECT_EQ(read(table.pages + table.max_pages, kOtherKeys),
            std::vector<int32_t>(pages.begin() + 9, pages.begin() + 9 + kOtherKeys));
}

TEST_F(DeviceTest, ChecksRunAfterWaits) {
  int checks = 0;
  cuda::CudaDevice::From(*exact_).AddCheck([&] { ++checks; });
  exact_->Synchronize();
  std::vector<float> values(4);
  const DeviceVector x(*exact_, values);
  x.Read();
  EXPECT_EQ(checks, 2);
}

TEST_F(DeviceTest, AttentionFindsItsSequences) {
  constexpr int32_t kPage = 16;
  const int64_t heads = 8, kv_heads = 2, dim = 64, slots = 64 * kPage;
  const std::vector<float> k = random_.Normal(slots * kv_heads * dim);
  const std::vector<float> v = random_.Normal(slots * kv_heads * dim);
  const DeviceVector device_k(*exact_, k), device_v(*exact_, v);
  const auto host_sequences = cpu_->MakeSequences(), gpu_sequences = exact_->MakeSequences();
  for (int round = 0; round < 10; ++round) {
    const std::vector<int32_t> pages = random_.Shuffled(64);
    std::vector<SequenceSpan> sequences;
    int32_t rows = 0, used = 0;
    for (int i = 0; i < 5; ++i) {
      const auto kv_len = static_cast<int32_t>(1 + random_.Below(12 * kPage));
      const auto own = static_cast<int32_t>(1 + random_.Below(std::min(kv_len, 60)));
      sequences.push_back(
          {.row_begin = rows, .rows = own, .kv_len = kv_len, .pages = pages.data() + used});
      rows += own;
      used += (kv_len + kPage - 1) / kPage;
    }
    const std::vector<float> q = random_.Normal(rows * heads * dim);
    std::vector<float> expected(q.size());
    const DeviceVector device_q(*exact_, q), out(*exact_, expected);
    AttentionParams p = {.q = q.data(),
                         .ldq = heads * dim,
                         .k_cache = k.data(),
                         .v_cache = v.data(),
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .head_dim = dim,
                         .scale = 0.125f,
                         .out = expected.data(),
                         .ldo = heads * dim};
    host_sequences->Set(sequences, kPage);
    cpu_->Attention(p, *host_sequences);
    p.q = device_q.data();
    p.k_cache = device_k.data();
    p.v_cache = device_v.data();
    p.out = out.data();
    gpu_sequences->Set(sequences, kPage);
    exact_->Attention(p, *gpu_sequences);
    const std::vector<float> got = out.Read();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << i;
  }
}

// The same bits as without a recorded pass, with other sequences and queries in each replay.
TEST_F(DeviceTest, ARecordedPassSelectsTheKeysOfItsSequences) {
  constexpr int32_t kPage = 16, kTopK = 50;
  constexpr int64_t kIndexHeads = 8, kIndexDim = 32, kHeads = 16, kLora = 512, kRope = 64,
                    kRows = 8;
  const int64_t slots = 64 * kPage, latent = kLora + kRope;
  const auto in_bfloat16 = [&](int64_t count) {
    std::vector<uint16_t> bits;
    for (const float x : random_.Normal(count)) bits.push_back(ToBF16(x).bits);
    return bits;
  };
  const DeviceVector keys(*fast_, in_bfloat16(slots * kIndexDim));
  const DeviceVector latents(*fast_, in_bfloat16(slots * latent));
  const DeviceVector q(*fast_, std::vector<float>(kRows * kHeads * latent));
  const DeviceVector index_q(*fast_, std::vector<float>(kRows * kIndexHeads * kIndexDim));
  const DeviceVector weights(*fast_, std::vector<float>(kRows * kIndexHeads));
  const DeviceVector selected(*fast_, std::vector<int32_t>(kRows * kTopK));
  const DeviceVector out(*fast_, std::vector<float>(kRows * kHeads * kLora));
  const auto sequences = fast_->MakeSequences();
  const auto pass = [&] {
    fast_->SelectKeys({.q = index_q.data(),
                       .ldq = kIndexHeads * kIndexDim,
                       .weights = weights.data(),
                       .cache = keys.data(),
                       .kv_dtype = DType::kBF16,
                       .heads = kIndexHeads,
                       .head_dim = kIndexDim,
                       .topk = kTopK,
                       .selected = selected.data()},
                      *sequences);
    fast_->LatentAttention({.q = q.data(),
                            .ldq = kHeads * latent,
                            .cache = latents.data(),
                            .kv_dtype = DType::kBF16,
                            .heads = kHeads,
                            .lora = kLora,
                            .rope = kRope,
                            .scale = 0.05f,
                            .selected = selected.data(),
                            .topk = kTopK,
                            .out = out.data(),
                            .ldo = kHeads * kLora},
                           *sequences);
  };
  const auto fill = [&](const DeviceVector<float>& x, int64_t count) {
    const std::vector<float> values = random_.Normal(count);
    fast_->CopyIn(x.data(), values.data(), values.size() * sizeof(float));
  };
  for (int round = 0; round < 5; ++round) {
    const std::vector<int32_t> pages = random_.Shuffled(64);
    std::vector<SequenceSpan> spans;
    for (int32_t row = 0; row < kRows; ++row)
      spans.push_back({.row_begin = row,
                       .rows = 1,
                       .kv_len = static_cast<int32_t>(1 + random_.Below(8 * kPage)),
                       .pages = pages.data() + 8 * row});
    sequences->Set(spans, kPage);
    fill(q, kRows * kHeads * latent);
    fill(index_q, kRows * kIndexHeads * kIndexDim);
    fill(weights, kRows * kIndexHeads);
    fast_->Run(9, pass);
    const std::vector<float> got = out.Read();
    fast_->Run(0, pass);
    EXPECT_TRUE(SameBits(got, out.Read())) << round;
  }
}

TEST_F(DeviceTest, MarksOfTheStreamHaveTimesOfTheHost) {
  const int64_t count = 1 << 24;
  const DeviceVector x(*exact_, std::vector<float>(count, 1.0f));
  const std::unique_ptr<DeviceTimer> timer = exact_->MakeTimer();
  EXPECT_TRUE(timer->Resolve().empty());
  for (int round = 0; round < 2; ++round) {  // marks are reused
    exact_->Synchronize();
    const int64_t before = SteadyNanoseconds();
    EXPECT_EQ(timer->Mark(), 0);
    for (int i = 0; i < 20; ++i) exact_->AddInPlace(x.data(), x.data(), count);
    EXPECT_EQ(timer->Mark(), 1);
    exact_->AddInPlace(x.data(), x.data(), count);
    EXPECT_EQ(timer->Mark(), 2);
    const std::span<const int64_t> times = timer->Resolve();
    const int64_t after = SteadyNanoseconds();
    constexpr int64_t kSlack = 1'000'000;  // ns: tolerance for aligning the two clocks
    ASSERT_EQ(times.size(), 3u);
    EXPECT_GE(times[0], before - kSlack);
    EXPECT_LT(times[0], times[1]);
    EXPECT_LT(times[1], times[2]);
    EXPECT_LE(times[2], after + kSlack);
  }
  for (size_t i = 0; i < cuda::StreamTimer::kMaxMarks; ++i) ASSERT_GE(timer->Mark(), 0);
  EXPECT_EQ(timer->Mark(), -1);
  EXPECT_EQ(timer->Resolve().size(), cuda::StreamTimer::kMaxMarks);
  EXPECT_EQ(cpu_->MakeTimer(), nullptr);
}

}  // namespace
}  // namespace switchyard::kernels
