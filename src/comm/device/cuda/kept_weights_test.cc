// GPU memory of weights that outlives the process that has filled it. Processes that use CUDA must
// not fork, so the tests are *DeathTest suites, which run first.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/host/kept_descriptors.h"
#include "core/cuda/device_chunks.h"
#include "core/cuda/runtime.h"
#include "core/device_store.h"
#include "core/error.h"

namespace switchyard::cuda {
namespace {

constexpr int kCannotShare = 77;
constexpr uint64_t kKey = 12;
constexpr size_t kMiB = size_t{1} << 20;

// Sizes of arrays: small ones, and some that span chunks.
const std::vector<size_t>& Sizes() {
  static const std::vector<size_t> sizes = {4, 1000 * sizeof(int), 40 * kMiB, 256, 8 * kMiB + 4};
  return sizes;
}

int ValueOf(size_t array, size_t i) { return static_cast<int>(array * 1'000'000 + i % 9973); }

// Copies the arrays to the GPU, unless the store is filled. Returns whether the GPU holds them.
bool PlaceAndCheck(DeviceStore& store) {
  store.Begin();
  bool equal = true;
  std::vector<DeviceMemory> arrays;
  for (size_t a = 0; a < Sizes().size(); ++a) {
    arrays.emplace_back(Sizes()[a], &store);
    std::vector<int> values(Sizes()[a] / sizeof(int));
    for (size_t i = 0; i < values.size(); ++i) values[i] = ValueOf(a, i);
    if (!store.filled())
      CopyToDevice(arrays.back().data(), values.data(), Sizes()[a], "copy of a test");
    std::vector<int> got(values.size());
    Check(cudaMemcpy(got.data(), arrays.back().data(), Sizes()[a], cudaMemcpyDeviceToHost),
          "copy of a test");
    equal = equal && got == values;
  }
  Check(cudaDeviceSynchronize(), "test");
  store.Finish();
  return equal && store.Works();
}

// The first process: leaves its memory. Exit code 0: good.
int Leave(KeptDescriptors& kept) {
  DeviceStore store(MakeDeviceChunks(), 20 * kMiB);
  if (!PlaceAndCheck(store)) return 1;
  kept.Put(store.Record(kKey), store.descriptors());
  return 0;
}

// The next process: finds the memory. Exit code 0: good.
int Find(const KeptDescriptors& kept) {
  DeviceStore store(MakeDeviceChunks(), 0);
  const auto found = kept.Get();
  if (!found) return 2;
  std::vector<int> fds;
  for (const FileDescriptor& fd : found->descriptors) fds.push_back(fd.get());
  if (!store.Map(kKey, found->record, fds)) return 3;
  return PlaceAndCheck(store) && PlaceAndCheck(store) ? 0 : 4;
}

// Runs `body` in a process, which is killed afterwards if the result is 0. Returns the result.
int RunProcess(const std::function<int()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return 98;
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int result = 99;
    try {
      result = DeviceCount() == 0 || (UseDevice(0), !MakeDeviceChunks()) ? kCannotShare : body();
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
    }
    if (write(ends[1], &result, sizeof result) == sizeof result && result == 0) raise(SIGKILL);
    _exit(result);
  }
  int result = 97, status = 0;
  if (read(ends[0], &result, sizeof result) != sizeof result) result = 97;
  waitpid(pid, &status, 0);
  close(ends[0]);
  close(ends[1]);
  return result;
}

// The memory outlives several processes that are killed, until the parent closes the descriptors.
TEST(KeptWeightsDeathTest, ANewProcessFindsTheWeightsOfAKilledOne) {
  KeptDescriptors kept = KeptDescriptors::Create();
  const int first = RunProcess([&] { return Leave(kept); });
  if (first == kCannotShare) GTEST_SKIP() << "no GPU that shares memory";
  ASSERT_EQ(first, 0);
  for (int round = 0; round < 2; ++round) EXPECT_EQ(RunProcess([&] { return Find(kept); }), 0);
  kept.Clear();
  EXPECT_EQ(RunProcess([&] { return Find(kept); }), 2);
}

// The memory is freed when nothing holds its descriptors.
TEST(KeptWeightsDeathTest, TheMemoryIsFreedWithTheDescriptors) {
  KeptDescriptors kept = KeptDescriptors::Create();
  // Half of the memory that is free before the first round.
  auto* const half = static_cast<size_t*>(
      mmap(nullptr, sizeof(size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(static_cast<void*>(half), MAP_FAILED);
  const auto fill_half = [&] {
    if (*half == 0) {
      size_t free = 0, total = 0;
      Check(cudaMemGetInfo(&free, &total), "test");
      *half = free / 2;
    }
    DeviceStore store(MakeDeviceChunks(), *half);
    const auto memory = store.Allocate(*half);
    store.Finish();
    kept.Put(store.Record(kKey), store.descriptors());
    return 0;
  };
  for (int round = 0; round < 4; ++round) {  // more than the GPU has
    const int result = RunProcess(fill_half);
    if (result == kCannotShare) GTEST_SKIP() << "no GPU that shares memory";
    ASSERT_EQ(result, 0) << round;
    kept.Clear();
  }
  munmap(half, sizeof(size_t));
}

}  // namespace
}  // namespace switchyard::cuda
