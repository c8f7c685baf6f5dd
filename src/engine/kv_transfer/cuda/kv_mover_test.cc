// Copies of KV rows on a GPU, in one process and between two, against copies in host memory.
#include "engine/kv_transfer/kv_mover.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/cuda/runtime.h"
#include "engine/kv_transfer/kv_progress.h"
#include "engine/kv_transfer/kv_rows.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/device.h"

namespace switchyard {
namespace {

using namespace std::chrono_literals;

constexpr int kNoGpu = 77;
constexpr KvLayerFormat kFormat{.heads = 4, .key_bytes = 96, .value_bytes = 32};
constexpr int64_t kPositions = 300;

std::vector<std::byte> RandomBytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// One layer of a cache on `ranks` ranks, in memory at any address.
class Layout {
 public:
  Layout(int ranks, int64_t page_size, uint64_t seed) : ranks_(ranks), page_size_(page_size) {
    const int64_t needed = (kPositions + page_size - 1) / page_size;
    num_pages_ = needed + 5;
    pages_.resize(num_pages_);
    std::iota(pages_.begin(), pages_.end(), 0);
    // Some pages follow one another.
    if (seed % 3 != 0) std::shuffle(pages_.begin(), pages_.end(), std::mt19937_64(seed));
    pages_.resize(needed);
  }
  size_t bytes() const {
    return static_cast<size_t>(num_pages_ * page_size_ *
                               kFormat.Bytes(1));  // the heads are divided over the ranks
  }
  // Valid until the next call.
  KvLayerRows At(std::byte* memory) {
    shards_.clear();
    for (int rank = 0; rank < ranks_; ++rank) {
      const Range heads{rank * kFormat.heads / ranks_, (rank + 1) * kFormat.heads / ranks_};
      const int64_t rows = num_pages_ * page_size_ * heads.size();
      shards_.push_back({memory, memory + rows * kFormat.key_bytes, heads});
      memory += rows * (kFormat.key_bytes + kFormat.value_bytes);
    }
    return {shards_, pages_, page_size_, num_pages_};
  }

 private:
  const int ranks_;
  const int64_t page_size_;
  int64_t num_pages_ = 0;
  std::vector<int32_t> pages_;
  std::vector<KvShard> shards_;
};

std::vector<std::byte> Read(const std::byte* on_gpu, size_t bytes) {
  std::vector<std::byte> host(bytes);
  cuda::Check(cudaMemcpy(host.data(), on_gpu, bytes, cudaMemcpyDeviceToHost), "reading");
  return host;
}

void Write(std::byte* on_gpu, std::span<const std::byte> bytes) {
  cuda::CopyToDevice(on_gpu, bytes.data(), bytes.size(), "writing");
}

// Copies rows from `source` on a GPU, whose bytes are those of `contents`, to other memory of a GPU
// and to host memory, for several layouts.
void ExpectPlainCopies(KvMover& mover, std::byte* source, std::span<const std::byte> contents) {
  uint64_t seed = 0;
  for (const auto& [from_ranks, to_ranks] : {std::pair(1, 1), {1, 2}, {4, 1}, {2, 4}}) {
    for (const auto& [from_page, to_page] : {std::pair(16, 16), {5, 64}, {1, 3}}) {
      SCOPED_TRACE(fmt::format("{} to {} ranks, pages of {} and {}", from_ranks, to_ranks,
                               from_page, to_page));
      Layout from(from_ranks, from_page, ++seed), to(to_ranks, to_page, ++seed);
      ASSERT_LE(from.bytes(), contents.size());
      const int64_t begin = seed % 7, end = kPositions - seed % 11;
      std::vector<std::byte> host(contents.begin(), contents.end());
      std::vector<std::byte> want = RandomBytes(to.bytes(), seed);
      const cuda::DeviceMemory target(to.bytes());
      Write(target.data(), want);
      CopyKvRows(kFormat, from.At(source), to.At(target.data()), begin, end, &mover);
      const std::vector<std::byte> got = Read(target.data(), to.bytes());
      CopyKvRows(kFormat, from.At(host.data()), to.At(want.data()), begin, end);
      EXPECT_TRUE(got == want);

      // Through pinned memory, as between hosts.
      const auto size = static_cast<size_t>(kFormat.Bytes(end - begin));
      const std::shared_ptr<std::byte> buffer = mover.Buffer(size);
      const CanonicalRows rows(kFormat, begin, end, {buffer.get(), size});
      std::vector<std::byte> plain(size);
      const CanonicalRows want_rows(kFormat, begin, end, plain);
      CopyKvRows(kFormat, from.At(source), rows.rows(), begin, end, &mover);
      CopyKvRows(kFormat, from.At(host.data()), want_rows.rows(), begin, end);
      EXPECT_TRUE(std::equal(plain.begin(), plain.end(), buffer.get()));
      Write(target.data(), std::vector<std::byte>(to.bytes(), std::byte{1}));
      std::vector<std::byte> filled(to.bytes(), std::byte{1});
      CopyKvRows(kFormat, rows.rows(), to.At(target.data()), begin, end, &mover);
      CopyKvRows(kFormat, want_rows.rows(), to.At(filled.data()), begin, end);
      EXPECT_TRUE(Read(target.data(), to.bytes()) == filled);
    }
  }
}

// What two processes share.
struct Shared {
  alignas(64) std::byte page[1024];  // of KvExportSlot
  std::atomic<int> ended{0}, mapped{0};
};

constexpr size_t kSourceBytes = kExportUnit;
constexpr uint64_t kSourceSeed = 9;

template <typename Ready>
bool Await(const Ready& ready) {
  for (int i = 0; i < 6000; ++i) {
    if (ready()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

// Returns the exit code of `body` in another process: 1 if a check failed.
pid_t Fork(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (cuda::DeviceCount() == 0) _exit(kNoGpu);
  try {
    body();
  } catch (const std::exception& error) {
    fprintf(stderr, "process %d: %s\n", getpid(), error.what());
    _exit(1);
  }
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

int ExitCode(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

// Allocates, fills and exports memory on the GPU with this index, and keeps it until `ended`.
void Own(Shared& shared, int gpu) {
  cuda::UseDevice(gpu);
  const cuda::DeviceMemory memory(kSourceBytes);
  Write(memory.data(), RandomBytes(kSourceBytes, kSourceSeed));
  KvExportSlot(shared.page).Set(ExportGpuMemory(memory.data(), kSourceBytes));
  Await([&] { return shared.ended != 0; });
}

// One process maps the memory of another one. `kills`: which ends while its memory is mapped.
// Returns the worst exit code.
int RunTwoProcesses(int owner_gpu, bool kills) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Shared& shared = *new (memory) Shared;
  const pid_t owner = Fork([&] {
    if (owner_gpu >= cuda::DeviceCount()) _exit(kNoGpu);
    Own(shared, owner_gpu);
  });
  const pid_t reader = Fork([&] {
    cuda::UseDevice(0);
    const auto is_set = [&] { return KvExportSlot(shared.page).Get().has_value(); };
    ASSERT_TRUE(Await([&] { return is_set() || shared.ended != 0; }));
    if (!is_set()) return;  // the owner has no GPU
    const auto contents = RandomBytes(kSourceBytes, kSourceSeed);
    const std::shared_ptr<KvMover> mover = MakeGpuMover();
    // The mover's GPU is that of the first memory, which is this process's own.
    const cuda::DeviceMemory own(kExportUnit);
    const auto mine = mover->Map(ExportGpuMemory(own.data(), kExportUnit));
    EXPECT_EQ(mine.get(), own.data());
    const auto theirs = mover->Map(*KvExportSlot(shared.page).Get());
    ExpectPlainCopies(*mover, theirs.get(), contents);
    shared.mapped = 1;
    if (!kills) return;
    EXPECT_TRUE(Await([&] { return shared.ended != 0; }));
    ExpectPlainCopies(*mover, theirs.get(), contents);
  });
  int worst = 0;
  if (kills) {
    const bool mapped = Await([&] { return shared.mapped != 0; });
    EXPECT_EQ(kill(owner, SIGKILL), 0);
    const int code = ExitCode(owner);
    worst = mapped ? 0 : code;
    shared.ended = 1;
    return std::max(worst, ExitCode(reader));
  }
  worst = ExitCode(reader);
  shared.ended = 1;
  return std::max(worst, ExitCode(owner));
}

// A process that has used CUDA must not fork. googletest runs *DeathTest suites first, before CUDA
// is used.
TEST(GpuMoverDeathTest, RowsOfAnotherProcessAreCopied) {
  const int worst = RunTwoProcesses(0, /*kills=*/false);
  if (worst == kNoGpu) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(worst, 0);
}

TEST(GpuMoverDeathTest, RowsOfAnotherGpuAreCopied) {
  const int gpus = ExitCode(Fork([] { _exit(cuda::DeviceCount() > 1 ? 0 : kNoGpu); }));
  if (gpus == kNoGpu) GTEST_SKIP() << "two GPUs are needed";
  EXPECT_EQ(RunTwoProcesses(1, /*kills=*/false), 0);
}

// The memory of a rank that has ended stays mapped until the front unmaps it.
TEST(GpuMoverDeathTest, MappedMemoryOutlivesItsProcess) {
  if (ExitCode(Fork([] {})) == kNoGpu) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(RunTwoProcesses(0, /*kills=*/true), 0);
}

// Memory of this process's GPU, mapped by a mover.
class GpuMover : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no GPU";
    cuda::UseDevice(0);
    contents_ = RandomBytes(kSourceBytes, kSourceSeed);
    memory_ = cuda::DeviceMemory(kSourceBytes);
    Write(memory_.data(), contents_);
    mover_ = MakeGpuMover();
    mapped_ = mover_->Map(ExportGpuMemory(memory_.data(), kSourceBytes));
  }

  std::vector<std::byte> contents_;
  cuda::DeviceMemory memory_;
  std::shared_ptr<KvMover> mover_;
  std::shared_ptr<std::byte> mapped_;
};

TEST_F(GpuMover, RowsOfOneProcessAreCopied) {
  EXPECT_EQ(mapped_.get(), memory_.data());
  ExpectPlainCopies(*mover_, mapped_.get(), contents_);
  std::vector<std::byte> want = contents_;
  std::fill(want.begin() + 100, want.begin() + 200, std::byte{0});
  std::fill(want.begin() + 1000, want.begin() + 1003, std::byte{0});
  const std::span<std::byte> parts[] = {{mapped_.get() + 100, 100}, {mapped_.get() + 1000, 3}};
  mover_->Clear(parts);
  EXPECT_TRUE(Read(memory_.data(), kSourceBytes) == want);
}

TEST_F(GpuMover, ThreadsCopyAtTheSameTime) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      cuda::UseDevice(0);
      ExpectPlainCopies(*mover_, mapped_.get(), contents_);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(GpuPublisher, LayersAreVisibleOnceTheirWorkHasEnded) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  const auto device = kernels::MakeCudaDevice(
      {.max_tokens = 16, .max_sequences = 4, .max_pages = 16, .graphs = false});
  constexpr size_t kPage = 4096;
  void* const page =
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const std::span memory(static_cast<std::byte*>(page), kPage);
  const KvProgress progress(memory);
  {
    const KvPublisher publish = MakeGpuPublisher(memory, *device);
    publish(1, 1);
    device->Synchronize();
    EXPECT_EQ(progress.LayersOf(1), 1);
    // A host function, which ends only after the check, is before the next number in the stream.
    std::atomic<bool> checked{false};
    const auto wait = [](void* flag) {
      Await([&] { return static_cast<std::atomic<bool>*>(flag)->load(); });
    };
    const cudaStream_t stream = cuda::CudaDevice::From(*device).stream();
    cuda::Check(cudaLaunchHostFunc(stream, wait, &checked), "test");
    publish(1, 3);
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(progress.LayersOf(1), 1);
    checked = true;
    device->Synchronize();
    EXPECT_EQ(progress.LayersOf(1), 3);
    for (uint64_t pass = 2; pass < 20; ++pass) {
      for (int64_t layer = 1; layer < 5; ++layer) {
        publish(pass, layer);
        EXPECT_LE(progress.LayersOf(pass), layer);
      }
      device->Synchronize();
      EXPECT_EQ(progress.LayersOf(pass), 4);
    }
  }
  munmap(page, kPage);
}

}  // namespace
}  // namespace switchyard
