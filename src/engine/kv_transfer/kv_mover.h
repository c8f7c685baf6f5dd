// Copies between KV caches in the memory of GPUs, for processes that compute nothing themselves.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

namespace switchyard {

namespace kernels {
class Device;
}  // namespace kernels

// `rows` rows of `bytes` bytes, at equal distances.
struct KvCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  int64_t bytes = 0, rows = 1;
  int64_t to_stride = 0, from_stride = 0;  // bytes from a row to the next one

  // Extends this copy by `next`, if together they are one copy. false: nothing has changed.
  bool Append(const KvCopy& next);
  void Run() const;  // in host memory
};

// GPU memory of a rank's caches, for other processes of its host. Plain bytes.
struct KvExport {
  std::array<char, 64> process{};      // cuda::ProcessName
  std::array<char, 32> bus_id{};       // PCI bus id of the GPU, as text
  std::array<std::byte, 64> handle{};  // of CUDA IPC
  uint64_t address = 0;                // in that process
  uint64_t bytes = 0;
};

// A rank's KvExport in its kept memory, after the progress (KvProgress). Borrows the memory.
class KvExportSlot {
 public:
  explicit KvExportSlot(std::span<std::byte> memory);

  void Clear();                      // before the rank runs
  void Set(const KvExport& memory);  // by the rank, once
  std::optional<KvExport> Get() const;

 private:
  struct Content;
  Content* content_;
};

// Reaches GPU memory of ranks from another process of their host. Owned by the front; thread-safe.
// All copies are made by one GPU, that of the first memory that is mapped, on streams of their own.
class KvMover {
 public:
  virtual ~KvMover() = default;
  // Maps the memory for as long as the result lives, which the mover outlives. Error kResource if
  // it cannot be mapped.
  virtual std::shared_ptr<std::byte> Map(const KvExport& memory) = 0;
  // Makes all copies, and waits for them. Error kTimeout if the GPU does not end them. Addresses
  // are of mapped memory or of host memory.
  virtual void Copy(std::span<const KvCopy> copies) = 0;
  // Writes zeros to all of it. Waits as Copy.
  virtual void Clear(std::span<const std::span<std::byte>> memory) = 0;
  // Pinned host memory, aligned to 64 bytes. Freed buffers are kept for further calls.
  virtual std::shared_ptr<std::byte> Buffer(size_t bytes) = 0;
};

// Host memory for rows in transfer: of `mover`, else ordinary memory.
std::shared_ptr<std::byte> TransferBuffer(KvMover* mover, size_t bytes);

// For GPUs. Error kInvalid without CUDA.
std::shared_ptr<KvMover> MakeGpuMover();
// Describes memory that kernels::Device::Allocate has returned, of at least kExportUnit bytes, for
// KvMover::Map in other processes. Error kResource if this system has no CUDA IPC.
KvExport ExportGpuMemory(std::byte* memory, size_t bytes);
// Exported memory has a multiple of so many bytes: an allocation of this size shares no block of
// the driver with others.
constexpr size_t kExportUnit = size_t{2} << 20;

// KvProgress::Publish in the order of a GPU's stream: the number is written once all work that was
// enqueued before has ended. Used by the rank's thread.
using KvPublisher = std::function<void(uint64_t pass, int64_t layers)>;
// `memory`: of a KvProgress, in whole pages of the operating system. It is pinned as long as the
// result lives, which `device` outlives. Error kResource if it cannot be pinned.
KvPublisher MakeGpuPublisher(std::span<std::byte> memory, kernels::Device& device);

}  // namespace switchyard
