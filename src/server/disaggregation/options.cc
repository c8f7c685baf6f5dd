#include "server/disaggregation/options.h"

#include <algorithm>
#include <new>
#include <utility>

#include "comm/mesh.h"
#include "core/check.h"
#include "core/dtype.h"
#include "core/error.h"
#include "engine/kept_pages.h"
#include "engine/speculative/options.h"
#include "model/weights/shard.h"

namespace switchyard {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;
constexpr const char* kDraftHash = "the hash of the draft model's config.json";

std::vector<std::span<std::byte>> KeptOf(const SharedArena& arena) {
  std::vector<std::span<std::byte>> kept;
  for (int rank = 0; rank < arena.world(); ++rank) kept.push_back(arena.Kept(rank));
  return kept;
}

// These flags of EngineStatement may differ: they change where rows are computed, not the rows.
bool MayDiffer(const std::string& name) {
  static constexpr const char* kNames[] = {
      "--tp-size", "--ep-size", "--dp-size", "--moe-dense-tp-size", "--pp-size",
      "--moe-a2a-backend", "--moe-runner-backend", "--ep-num-redundant-experts",
      "the hash of --init-expert-location", "--eplb-rank-costs", "--speculative-moe-a2a-backend",
      "--speculative-moe-runner-backend",
      // Tokens that a draft model may draft change its drafts, not its rows.
      "the hash of --speculative-token-map",
      // Drafts without a model need nothing of the other worker. See KvStatement.
      "--speculative-algorithm"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

}  // namespace

MappedCaches::MappedCaches(std::shared_ptr<SharedArena> from, RankJob job,
                           std::shared_ptr<KvMover> mover)
    : arena(std::move(from)),
      caches(job.config, job.plan, KeptOf(*arena)),
      job_(std::move(job)),
      mover_(std::move(mover)) {
  CHECK_EQ(mover_ != nullptr, job_.plan.cuda);
}

bool MappedCaches::exported() const {
  return std::ranges::all_of(
      KeptOf(*arena), [](const auto& memory) { return KvExportSlot(memory).Get().has_value(); });
}

bool MappedCaches::attached() const {
  const std::lock_guard lock(mutex_);
  return !mover_ || !memory_.empty();
}

void MappedCaches::ClearExports() {
  if (!mover_) return;
  for (const std::span<std::byte> memory : KeptOf(*arena)) KvExportSlot(memory).Clear();
}

void MappedCaches::Attach() {
  const std::lock_guard lock(mutex_);
  if (!mover_ || !memory_.empty()) return;
  std::vector<std::shared_ptr<std::byte>> mapped;
  std::vector<std::span<std::byte>> memories;
  for (int rank = 0; rank < arena->world(); ++rank) {
    const auto exported = KvExportSlot(arena->Kept(rank)).Get();
    if (!exported) throw Resource("rank {} has no KV cache yet", rank);
    const Mesh mesh(job_.config.mesh, rank);
    const size_t want = ExportedCaches::Bytes(
        job_.config, StagePlanOf(job_.config, job_.plan, mesh.pp_rank()), mesh);
    if (exported->bytes != want)
      throw Invalid("the KV cache of rank {} has {} bytes: want {}", rank, exported->bytes, want);
    mapped.push_back(mover_->Map(*exported));
    memories.emplace_back(mapped.back().get(), want);
  }
  caches.Attach(job_.config, job_.plan, memories);
  memory_ = std::move(mapped);
}

Statement KvStatement(const RankJob& job) {
  // Kernels of CPUs and GPUs round differently, so the decode worker would not continue as the
  // prefill worker. Chunks of prompts depend on the GPU.
  Statement statement = {
      {"--device", job.plan.cuda ? "cuda" : "cpu"},
      {"the chunk of prompts with recurrent states", std::to_string(job.plan.state_chunk())}};
  std::string draft_hash;
  for (auto& entry : EngineStatement(job.config)) {
    if (entry.first == kDraftHash) {
      draft_hash = entry.second;
    } else if (!MayDiffer(entry.first)) {
      statement.push_back(std::move(entry));
    }
  }
  const DraftSource source = SourceOf(job.config.speculative);
  const bool drafts = HasDraftModel(source);
  statement.emplace_back("--speculative-algorithm", drafts ? NameOf(source) : "");
  statement.emplace_back(kDraftHash, drafts ? draft_hash : "none");
  const auto& quantization = job.plan.model.quantization;
  statement.emplace_back("the KV cache", KvFormat::Of(job.plan).Text());
  statement.emplace_back("--dtype", Name(job.plan.dtype));
  statement.emplace_back("the rounding of activations to bfloat16",
                         quantization.bfloat16_rows ? "on" : "off");
  statement.emplace_back("the rounding of activations to int8",
                         quantization.int8_group_rows ? "on" : "off");
  statement.emplace_back("the rounding of activations of FP8 weights",
                         quantization.fp8_bfloat16_rows ? "on" : "off");
  return statement;
}

void CheckArena(const SharedArena& arena, const RankJob& job, const Statement& statement,
                const std::string& who) {
  const Mesh mesh(job.config.mesh, 0);
  CheckSplits(job.plan.model, mesh, /*replicated_shared_expert=*/true);
  CheckSame(statement, KvStatement(job), "the decode worker", "the memory of " + who);
  if (job.config.disaggregation_mode != "prefill" || job.config.page_size < 1 ||
      job.plan.num_pages < 0 || job.plan.num_states < 0)
    throw Invalid("the memory of {} is not that of a prefill worker", who);
  if (arena.world() != mesh.world())
    throw Invalid("{} has {} ranks, but its memory has {}", who, mesh.world(), arena.world());
  const size_t want = KeptPages::BytesPerRank(job.config, job.plan), has = arena.Kept(0).size();
  if (has != want)
    throw Invalid("{} has {} bytes of memory for each rank, but its caches need {}", who, has,
                  want);
}

int64_t PositionsPerPiece(const KvFormat& format) {
  return std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, format.LargestPosition()));
}

std::shared_ptr<std::byte> MemoryForRows(const KvTransferOptions& options, int64_t bytes) {
  std::string why = "out of memory";
  try {
    return TransferBuffer(options.mover.get(), static_cast<size_t>(bytes));
  } catch (const Error& error) {
    why = error.what();
  } catch (const std::bad_alloc&) {
  }
  throw Resource("the {} worker has no memory for {} bytes of KV rows in transfer: {}",
                 options.job.config.disaggregation_mode, bytes, why);
}

}  // namespace switchyard
