// Memory of a GPU that is freed while its addresses stay valid.
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/device_store.h"
#include "core/error.h"
#include "kernels/cuda/device/device_testing.h"
#include "kernels/fused_ops.h"
#include "kernels/gpus.h"

namespace switchyard::kernels {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

size_t FreeBytes() {
  size_t free = 0, total = 0;
  cuda::Check(cudaMemGetInfo(&free, &total), "reading of free memory");
  return free;
}

// A captured pass reads and writes the memory at the same addresses after each release.
TEST_F(DeviceTest, CapturedPassesUseReleasedMemoryAgain) {
  constexpr int64_t kCount = 70 * kMiB / sizeof(float) + 5;
  const auto memory = exact_->AllocateReleasable(kCount * sizeof(float));
  if (!memory) GTEST_SKIP() << "the GPU has no virtual memory management";
  auto* const y = static_cast<float*>(memory->data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(y) % 4096, 0u);
  const DeviceVector x(*exact_, std::vector<float>(1000, 1.0f));
  float* const last = y + kCount - 1000;
  const auto pass = [&] { exact_->AddInPlace(last, x.data(), 1000); };
  std::vector<float> got(1000);
  for (int cycle = 0; cycle < 5; ++cycle) {
    for (int round = 1; round <= 4; ++round) {
      exact_->Run(7, pass);
      exact_->CopyOut(got.data(), last, got.size() * sizeof(float));
      ASSERT_EQ(got, std::vector<float>(1000, static_cast<float>(round))) << cycle;
    }
    const size_t before = FreeBytes();
    memory->Release();
    memory->Release();  // no effect
    EXPECT_GE(FreeBytes(), before + 64 * kMiB);
    memory->Restore();
    memory->Restore();  // no effect
    EXPECT_EQ(memory->data(), y);
    exact_->CopyOut(got.data(), last, got.size() * sizeof(float));
    EXPECT_EQ(got, std::vector<float>(1000, 0.0f));  // zeroed
  }
}

TEST_F(DeviceTest, ReleasableMemoryIsFreedOnAnyThreadInBothStates) {
  const size_t before = FreeBytes();
  for (const bool released : {false, true}) {
    auto memory = exact_->AllocateReleasable(256 * kMiB);
    if (!memory) GTEST_SKIP() << "the GPU has no virtual memory management";
    if (released) memory->Release();
    std::thread([memory = std::move(memory)]() mutable { memory.reset(); }).join();
  }
  EXPECT_GE(FreeBytes() + 128 * kMiB, before);
}

TEST_F(DeviceTest, ReleasedMemoryStaysReleasedIfThereIsTooLittle) {
  const size_t half = FreeBytes() * 6 / 10;
  auto memory = exact_->AllocateReleasable(half);
  if (!memory) GTEST_SKIP() << "the GPU has no virtual memory management";
  memory->Release();
  {
    const auto other = exact_->AllocateReleasable(half);
    EXPECT_THROW(memory->Restore(), Error);
    EXPECT_THROW(memory->Restore(), Error);
  }
  memory->Restore();
  std::vector<float> got(1000, 1.0f);
  exact_->CopyOut(got.data(), memory->data(), got.size() * sizeof(float));
  EXPECT_EQ(got, std::vector<float>(1000, 0.0f));
}

// Two devices, one after the other, place the same matrices in one store. The second one reads no
// data. The parts of a stacked matrix take no memory.
TEST_F(DeviceTest, WeightsInAStoreArePlacedOnce) {
  std::unique_ptr<DeviceChunks> chunks = MakeDeviceChunks(0);
  if (!chunks) GTEST_SKIP() << "the GPU does not share memory";
  DeviceStore store(std::move(chunks), 16 * kMiB);
  constexpr int64_t kRows = 96, kColumns = 256;
  const WeightView parts[] = {random_.Weight(WeightFormat::kBF16, kRows, kColumns),
                              random_.Weight(WeightFormat::kBF16, kRows, kColumns)};
  const std::vector<float> values = random_.Normal(1000);
  const Tensor vector = Tensor::View(values.data(), DType::kF32, {1000}, nullptr);
  std::vector<uint16_t> first;
  for (int round = 0; round < 3; ++round) {
    const std::unique_ptr<Device> device = Make(DType::kBF16);
    store.Begin();
    device->SetWeightStore(&store);
    WeightView views[2];
    for (int i = 0; i < 2; ++i) {
      WeightView w = parts[i];
      if (round > 0) w.data = &w;  // must not be read
      views[i] = device->Place(w);
    }
    const WeightView stacked = device->fused()->ConcatenateRows(views);
    const Tensor placed = device->Place(vector);
    for (WeightView& view : views) view = {};
    device->SetWeightStore(nullptr);
    device->Synchronize();
    store.Finish();
    std::vector<uint16_t> rows(2 * kRows * kColumns);
    device->CopyOut(rows.data(), stacked.data, rows.size() * sizeof(uint16_t));
    if (round == 0) first = rows;
    EXPECT_EQ(rows, first);
    std::vector<float> floats(values.size());
    device->CopyOut(floats.data(), placed.raw(), floats.size() * sizeof(float));
    EXPECT_EQ(floats, values);
  }
}

TEST_F(DeviceTest, ACacheInAStoreKeepsItsContentsUntilItIsReleased) {
  std::unique_ptr<DeviceChunks> chunks = MakeDeviceChunks(0);
  if (!chunks) GTEST_SKIP() << "the GPU does not share memory";
  DeviceStore store(std::move(chunks), 16 * kMiB);
  int releases = 0;
  const std::vector<float> values = random_.Normal(1000);
  std::vector<float> got(values.size());
  void* first = nullptr;
  for (int round = 0; round < 3; ++round) {
    const std::unique_ptr<Device> device = Make(DType::kF32);
    device->SetCacheStore(&store, [&] { ++releases; });
    const auto memory = device->AllocateReleasable(3 * kMiB);
    store.Finish();
    if (round == 0) first = memory->data();
    EXPECT_EQ(memory->data(), first);
    const auto read = [&] {
      device->CopyOut(got.data(), memory->data(), got.size() * sizeof(float));
      return got;
    };
    EXPECT_EQ(read(), round == 1 ? values : std::vector<float>(values.size()));
    device->CopyIn(memory->data(), values.data(), values.size() * sizeof(float));
    device->Synchronize();
    if (round == 0) continue;
    const size_t before = FreeBytes();
    memory->Release();
    memory->Release();  // no effect
    EXPECT_GT(FreeBytes(), before);
    if (round == 1) continue;  // the next device restores it
    memory->Restore();
    EXPECT_EQ(memory->data(), first);
    EXPECT_EQ(read(), std::vector<float>(values.size()));
  }
  EXPECT_EQ(releases, 2);
}

}  // namespace
}  // namespace switchyard::kernels
