// Memory of a GPU that is freed while its addresses stay valid.
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/device/device_testing.h"

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

}  // namespace
}  // namespace switchyard::kernels
