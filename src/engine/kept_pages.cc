#include "engine/kept_pages.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/log.h"
#include "engine/kept_gpu_memory.h"
#include "kernels/device.h"

namespace switchyard {
namespace {

constexpr size_t kPageBytes = 4096;

// The progress comes first, with KvExport in the same page, then the records.
size_t ProgressBytes(const EngineConfig& config) { return config.disaggregated() ? kPageBytes : 0; }
// Bytes of the page records, which precede the caches in the kept memory. Rounded up to whole pages
// of the operating system.
size_t RecordBytes(const EngineConfig& config, const EnginePlan& plan) {
  const size_t bytes = PageRecords::Bytes(plan.num_pages, config.page_size);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// GPUs have a page more, for padding rows.
size_t KvBytes(const ModelConfig& model, const Mesh& mesh, const EngineConfig& config,
               const EnginePlan& plan) {
  const int64_t pages = plan.num_pages + (plan.cuda ? 1 : 0);
  return KvStorage::Bytes(model, mesh, pages, config.page_size, plan.kv_dtype);
}

// Bytes of the caches of a rank.
size_t CacheBytes(const EngineConfig& config, const EnginePlan& own, const Mesh& mesh) {
  size_t bytes = KvBytes(own.model, mesh, config, own);
  if (own.draft) bytes += KvBytes(*own.draft, mesh, config, own);
  return bytes + StateStorage::Bytes(own.model, mesh, own.num_states);
}

// Bytes before the caches. GPU memory has caches only.
size_t BytesBefore(const EngineConfig& config, const EnginePlan& plan) {
  return plan.cuda ? 0 : ProgressBytes(config) + RecordBytes(config, plan);
}

}  // namespace

size_t KeptPages::BytesPerRank(const EngineConfig& config, const EnginePlan& plan) {
  if (plan.cuda) {
    const size_t records = KeepsGpuCache(config, plan) ? RecordBytes(config, plan) : 0;
    return ProgressBytes(config) + records;
  }
  // Pages are useless to the next epoch without the states at their ends: it has no checkpoints.
  const bool reused = !config.disable_radix_cache && !plan.model.has_states();
  if (!reused && !config.disaggregated()) return 0;
  size_t most = 0;
  for (int rank = 0; rank < config.mesh.world(); ++rank) {
    const Mesh mesh(config.mesh, rank);
    most = std::max(most, CacheBytes(config, StagePlanOf(config, plan, mesh.pp_rank()), mesh));
  }
  return ProgressBytes(config) + RecordBytes(config, plan) + most;
}

std::function<void(uint64_t, int, const schedule::Operation&)> KeptPages::PublishTo(
    std::span<std::byte> memory, std::span<std::byte> first, const EngineConfig& config,
    const EnginePlan& plan, const KvPublisher* gpu) {
  if (memory.empty() || config.disaggregation_mode != "prefill") return nullptr;
  KvProgress progress = Progress(memory);
  progress.Publish(0, 0);  // the last epoch's passes had the same numbers
  struct Stored {
    uint64_t pass = 0;
    std::array<int64_t, 2> layers{};  // of each micro-batch
    int64_t published = 0;            // on a GPU, where each publication is a kernel
    int64_t rung = -1;                // on CPUs: the number at the last ring
  };
  return [progress, bell = Bell(first), gpu, layers = plan.model.num_layers(), stored = Stored()](
             uint64_t pass, int micro_batches, const schedule::Operation& operation) mutable {
    using schedule::Kind;
    using schedule::Phase;
    const bool last = operation.kind == Kind::kLogits || operation.kind == Kind::kSend;
    if (operation.kind != Kind::kForward && !last) return;
    if (stored.pass != pass) stored = {.pass = pass};
    const bool after_attention =
        operation.phase != Phase::kQkv && operation.phase != Phase::kAttention;
    const std::span<int64_t> parts = std::span(stored.layers).first(micro_batches);
    parts[operation.micro_batch] = last ? layers : operation.layer + (after_attention ? 1 : 0);
    const int64_t complete = std::ranges::min(parts);
    if (!gpu) {
      progress.Publish(pass, complete);
      if (std::exchange(stored.rung, complete) != complete) bell.Ring();
      return;
    }
    if (micro_batches > 1 || complete <= stored.published) return;
    stored.published = complete;
    (*gpu)(pass, complete);
  };
}

KvStorage KeptPages::Storage(std::span<std::byte> memory, const EngineConfig& config,
                             const EnginePlan& plan, const Mesh& mesh) {
  return KvStorage(plan.model, mesh, plan.num_pages, config.page_size, plan.kv_dtype,
                   memory.subspan(BytesBefore(config, plan)), /*padding_page=*/plan.cuda);
}

KvStorage KeptPages::DraftStorage(std::span<std::byte> memory, const EngineConfig& config,
                                  const EnginePlan& plan, const Mesh& mesh) {
  const size_t before = BytesBefore(config, plan) + KvBytes(plan.model, mesh, config, plan);
  return KvStorage(*plan.draft, mesh, plan.num_pages, config.page_size, plan.kv_dtype,
                   memory.subspan(before), /*padding_page=*/plan.cuda);
}

StateStorage KeptPages::States(std::span<std::byte> memory, const EngineConfig& config,
                               const EnginePlan& plan, const Mesh& mesh) {
  size_t before = BytesBefore(config, plan) + KvBytes(plan.model, mesh, config, plan);
  if (plan.draft) before += KvBytes(*plan.draft, mesh, config, plan);
  return StateStorage(plan.model, mesh, plan.num_states, memory.subspan(before));
}

KeptPages::KeptPages(std::span<std::byte> memory, const EngineConfig& config,
                     const EnginePlan& plan, RankComm& comm, bool has_cache)
    : records(memory.subspan(ProgressBytes(config), RecordBytes(config, plan)), plan.num_pages,
              config.page_size) {
  if (!plan.cuda) {
    kv = Storage(memory, config, plan, comm.mesh);
    if (plan.draft) draft_kv = DraftStorage(memory, config, plan, comm.mesh);
    states = States(memory, config, plan, comm.mesh);
  }
  for (int32_t page = 0; !has_cache && page < plan.num_pages; ++page) {
    if (records.Get(page)) records.Clear(page);
  }

  const std::vector<uint64_t> mine = records.Digests();
  Communicator& group = *comm.attn_tp;
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(group.size()));
  group.AllGather(mine.data(), all.data(), mine.size() * sizeof mine[0]);
  records.KeepCommon(all);
  const int64_t kept = records.count();
  if (kept > 0 && comm.mesh.rank() == 0)
    LOG_INFO("reused {} of {} pages of the last epoch's KV cache", kept, plan.num_pages);
}

size_t ExportedCaches::Bytes(const EngineConfig& config, const EnginePlan& plan, const Mesh& mesh) {
  const size_t bytes = std::max<size_t>(CacheBytes(config, plan, mesh), 1);
  return (bytes + kExportUnit - 1) / kExportUnit * kExportUnit;
}

ExportedCaches::ExportedCaches(std::span<std::byte> kept, const EngineConfig& config,
                               const EnginePlan& plan, const Mesh& mesh, kernels::Device& device) {
  CHECK(plan.cuda && config.disaggregated());
  const size_t bytes = Bytes(config, plan, mesh);
  memory = device.Allocate(bytes);
  const std::span caches(static_cast<std::byte*>(memory.get()), bytes);
  kv = KeptPages::Storage(caches, config, plan, mesh);
  if (plan.draft) draft_kv = KeptPages::DraftStorage(caches, config, plan, mesh);
  states = KeptPages::States(caches, config, plan, mesh);
  KvExportSlot(kept).Set(ExportGpuMemory(caches.data(), bytes));
}

}  // namespace switchyard
