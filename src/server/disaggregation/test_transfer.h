// Both sides of a transfer in one process, without ranks: for tests and benchmarks.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/kept_pages.h"
#include "engine/kv_transfer/test_kv_mover.h"
#include "server/disaggregation/kv_receiver.h"
#include "server/disaggregation/kv_sender.h"

namespace switchyard {

// The configuration of one server.
struct SideOptions {
  std::filesystem::path model;
  MeshShape mesh{1, 1};
  int32_t page_size = 16;
  int64_t tokens = 1024;
  std::string kv_dtype = "auto";
  std::string algorithm = {};  // --speculative-algorithm
  bool gpus = false;           // ranks export memory, as on GPUs; it is host memory (FakeMover)
};

inline RankJob JobOf(const SideOptions& options, const char* mode) {
  EngineConfig config;
  config.model_path = options.model;
  config.device = "cpu";
  config.mesh = options.mesh;
  config.page_size = options.page_size;
  config.max_total_tokens = options.tokens;
  config.kv_cache_dtype = options.kv_dtype;
  config.disaggregation_mode = mode;
  config.speculative.algorithm = options.algorithm;
  RankJob job{config, MakePlan(config)};
  job.plan.cuda = options.gpus;
  return job;
}

// The memory of the ranks of one server.
struct Side {
  Side(const SideOptions& options, const char* mode)
      : job(JobOf(options, mode)),
        arena(SharedArena::Create(job.config.mesh.world(), 4096,
                                  KeptPages::BytesPerRank(job.config, job.plan))),
        mover(options.gpus ? std::make_shared<FakeMover>() : nullptr),
        mapped(std::make_shared<MappedCaches>(arena, job, mover)) {}

  // Allocates and exports the caches of ranks on GPUs, as the ranks do. Once, after
  // KvSender::Use or KvReceiver::Use.
  void Export() {
    for (int rank = 0; mover && rank < arena->world(); ++rank) {
      const Mesh mesh(job.config.mesh, rank);
      const size_t bytes = ExportedCaches::Bytes(
          job.config, StagePlanOf(job.config, job.plan, mesh.pp_rank()), mesh);
      memory.push_back(TransferBuffer(nullptr, bytes));
      const std::span caches(memory.back().get(), bytes);
      std::ranges::fill(caches, std::byte{0});
      KvExportSlot(arena->Kept(rank)).Set(FakeMover::Export(caches));
    }
    mapped->Attach();
  }
  // Whether the exported memory is that of these ranks.
  bool Owns(const KvExport& exported) const {
    return std::ranges::any_of(memory, [&](const auto& caches) {
      return reinterpret_cast<uint64_t>(caches.get()) == exported.address;
    });
  }

  KvCaches& caches() { return mapped->caches; }
  int64_t PagesFor(int64_t positions) const {
    return (positions + job.config.page_size - 1) / job.config.page_size;
  }
  // The pages for this number of positions, in random order.
  std::vector<int32_t> Pages(int64_t positions, uint64_t seed) const {
    std::vector<int32_t> pages(job.plan.num_pages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937_64(seed));
    pages.resize(PagesFor(positions));
    return pages;
  }
  // The rows of a layer in the canonical order.
  std::vector<std::byte> Read(int group, int64_t layer, std::span<const int32_t> pages,
                              int64_t begin, int64_t end) {
    const KvLayerFormat& format = caches().format().layers[layer];
    std::vector<std::byte> bytes(format.Bytes(end - begin));
    CopyKvRows(format, caches().Layer(group, layer, pages),
               CanonicalRows(format, begin, end, bytes).rows(), begin, end);
    return bytes;
  }
  // Writes random rows.
  void Fill(int group, int64_t layer, std::span<const int32_t> pages, int64_t begin, int64_t end,
            uint64_t seed) {
    const KvLayerFormat& format = caches().format().layers[layer];
    std::vector<std::byte> bytes(format.Bytes(end - begin));
    std::mt19937_64 random(seed * 1000 + layer);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    CopyKvRows(format, CanonicalRows(format, begin, end, bytes).rows(),
               caches().Layer(group, layer, pages), begin, end);
  }
  void FillAll(int group, std::span<const int32_t> pages, int64_t end, uint64_t seed) {
    for (int64_t layer = 0; layer < caches().format().num_layers(); ++layer)
      Fill(group, layer, pages, 0, end, seed);
  }
  // The states of all layers in a slot, in the canonical order.
  std::vector<std::byte> ReadStates(int group, int32_t slot) {
    return VisitStates(
        group, slot,
        [](const KvStateFormat& format, const auto& shards, const KvStateShard& whole) {
          CopyKvState(format, shards, {&whole, 1});
        });
  }
  // Writes random states.
  void FillStates(int group, int32_t slot, uint64_t seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    VisitStates(group, slot,
                [&](const KvStateFormat& format, const auto& shards, const KvStateShard& whole) {
                  const int64_t floats = format.Bytes() / static_cast<int64_t>(sizeof(float));
                  for (int64_t i = 0; i < floats; ++i)
                    whole.inputs[i] =
                        static_cast<float>(random() % 1000);  // the heads follow the inputs
                  CopyKvState(format, {&whole, 1}, shards);
                });
  }
  void Publish(uint64_t pass, int64_t layers) {
    for (int stage = 0; stage < job.config.mesh.pp; ++stage) PublishStage(stage, pass, layers);
  }
  void PublishStage(int stage, uint64_t pass, int64_t layers) {
    const int tp = job.config.mesh.tp;
    for (int rank = stage * tp; rank < (stage + 1) * tp; ++rank)
      KeptPages::Progress(arena->Kept(rank)).Publish(pass, layers);
  }

  // Calls `visit` with the shards of each layer that has states, and a buffer for its whole state.
  // Returns the buffers.
  template <typename Visit>
  std::vector<std::byte> VisitStates(int group, int32_t slot, const Visit& visit) {
    const KvFormat& format = caches().format();
    std::vector<std::byte> all;
    for (int64_t layer = 0; layer < format.num_layers(); ++layer) {
      if (format.layers[layer].StateBytes() == 0) continue;
      std::vector<std::byte> bytes(format.layers[layer].StateBytes());
      visit(format.states, caches().State(group, layer, slot),
            CanonicalState(format.states, bytes));
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

  const RankJob job;
  const std::shared_ptr<SharedArena> arena;
  std::vector<std::shared_ptr<std::byte>> memory;  // [world] of ranks on GPUs; else empty
  const std::shared_ptr<FakeMover> mover;          // null: ranks on CPUs
  const std::shared_ptr<MappedCaches> mapped;
};

// Messages to the ranks, by request.
template <typename Value>
class Messages {
 public:
  void Put(uint64_t id, Value value) {
    const std::lock_guard lock(mutex_);
    values_.emplace(id, std::move(value));
    changed_.notify_all();
  }
  // nullopt after 20 s, or `timeout`.
  std::optional<Value> Take(uint64_t id,
                            std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(id); }))
      return std::nullopt;
    return std::move(values_.extract(id).mapped());
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Value> values_;
};

struct TransferSetup {
  SideOptions prefill, decode;
  std::string backend = "tcp", decode_backend;  // decode_backend: empty: `backend`
  std::string secret, decode_secret;
  std::chrono::milliseconds timeout{20'000};
};

// A sender and a receiver, connected by TCP on this host.
class TransferRig {
 public:
  explicit TransferRig(const TransferSetup& setup)
      : prefill(setup.prefill, "prefill"),
        decode(setup.decode, "decode"),
        sender({.job = prefill.job,
                .backend = setup.backend,
                .key = ConnectionKey::Of(setup.secret, "kv transfer"),
                .bootstrap = {"127.0.0.1", 0},
                .timeout = setup.timeout,
                .mover = prefill.mover},
               {.release = [this](uint64_t id, const std::string& e) { released.Put(id, e); },
                .want = [this](uint64_t id) { wanted.Put(id, true); }}),
        receiver(
            {.job = decode.job,
             .backend = setup.decode_backend.empty() ? setup.backend : setup.decode_backend,
             .key = ConnectionKey::Of(
                 setup.decode_secret.empty() ? setup.secret : setup.decode_secret, "kv transfer"),
             .timeout = setup.timeout,
             .mover = decode.mover},
            {.start = [this](uint64_t id, RequestOutput o) { started.Put(id, std::move(o)); }}) {
    sender.Use(prefill.arena);
    receiver.Use(decode.arena);
    prefill.Export();
    decode.Export();
  }

  KvRoom Room(uint64_t room) const { return {{room, 0}, "127.0.0.1", sender.port()}; }

  Side prefill, decode;
  Messages<std::string> released;   // by the sender, to the prefill ranks
  Messages<bool> wanted;            // by the sender, to the prefill ranks
  Messages<RequestOutput> started;  // by the receiver, to the decode ranks
  KvSender sender;
  KvReceiver receiver;
};

}  // namespace switchyard
