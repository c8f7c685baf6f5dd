#include "server/args/settle_args.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "core/command_line.h"
#include "core/error.h"
#include "model/hub_cache.h"
#include "server/args/parser_args.h"
#include "server/args/speculative_args.h"

namespace switchyard {
namespace {

void SetExpertParallelism(const CommandLine& app, ServerArgs& a) {
  if (!a.enable_ep_moe && !a.enable_deepep_moe) return;
  if (!app.Given("--ep-size")) a.engine.mesh.ep = a.engine.mesh.tp;
  if (!a.enable_deepep_moe) return;
  std::string& backend = a.engine.moe.a2a_backend;
  if (app.Given("--moe-a2a-backend") && backend != "deepep") {
    throw Invalid("--enable-deepep-moe means --moe-a2a-backend deepep, but {} is given too",
                  backend);
  }
  backend = "deepep";
}

void SetAttentionGroups(ServerArgs& a) {
  if (a.dp_size > 1 && !a.enable_dp_attention)
    throw Invalid(
        "--dp-size {0} without --enable-dp-attention would need {0} replicas of the whole engine: "
        "start {0} servers behind a router, or add --enable-dp-attention",
        a.dp_size);
  a.engine.mesh.dp = a.dp_size;
}

// Replaces a Hugging Face id by the directory of its local snapshot. The id remains the served
// name.
void ResolveModel(ServerArgs& a) {
  const std::filesystem::path named = a.engine.model_path;
  const std::filesystem::path cache = a.download_dir;
  a.engine.model_path = ResolveCheckpoint(named, a.revision, cache);
  if (a.served_model_name.empty() && a.engine.model_path != named)
    a.served_model_name = named.string();
  if (!a.tokenizer_path.empty())
    a.tokenizer_path = ResolveCheckpoint(a.tokenizer_path, a.revision, cache).string();
}

void NoteDpRank(TakenFlags* taken) {
  const char* rank = std::getenv("SGLANG_DP_RANK");
  if (rank == nullptr || *rank == '\0') return;
  const std::string_view text = rank;
  if (text.size() > 9 || text.find_first_not_of("0123456789") != std::string_view::npos)
    throw Invalid("environment variable SGLANG_DP_RANK={}: want an integer of at least 0", text);
  taken->without_effect.push_back(
      fmt::format("SGLANG_DP_RANK={} has no effect here: each request can select its attention "
                  "group (data_parallel_rank)",
                  text));
}

// Adds log lines for HCCL_BUFFSIZE and DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ if the exchange has no
// rounds.
void NoteRounds(const MoeOptions& moe, TakenFlags* taken) {
  const bool low_latency = moe.deepep_mode == "low_latency" &&
                           (moe.a2a_backend == "deepep" || moe.a2a_backend == "mooncake");
  if (moe.a2a_backend != "none" && !low_latency) return;
  const auto note = [&](const std::string& variable) {
    taken->without_effect.push_back(
        fmt::format("{} has no effect here: exchanges of {} do not run in rounds", variable,
                    low_latency ? "--deepep-mode low_latency" : "--moe-a2a-backend none"));
  };
  if (moe.hccl_buffer_mib != 0) note(fmt::format("HCCL_BUFFSIZE={}", moe.hccl_buffer_mib));
  if (moe.combine_long_seq) note("DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ=1");
}

// Adds a log line for --enable-single-batch-overlap if the exchange returns all outputs in one
// part.
void NoteSingleBatchOverlap(const MoeOptions& moe, TakenFlags* taken) {
  if (!moe.single_batch_overlap || CombinesInParts(moe)) return;
  taken->without_effect.push_back(fmt::format(
      "--enable-single-batch-overlap has no effect here: --moe-a2a-backend {} {}", moe.a2a_backend,
      moe.a2a_backend == "none" ? "sends no rows"
                                : "does not return outputs in parts; want deepep, flashinfer or "
                                  "mooncake"));
}

}  // namespace

void SettleArgs(const CommandLine& app, ServerArgs* args) {
  SetExpertParallelism(app, *args);
  CheckSpeculation(args->engine);
  SetAttentionGroups(*args);
  ResolveModel(*args);
  CheckParserFlags(*args);
  if (args->grammar_backend == "none") args->engine.disable_jump_forward = true;
}

void NoteWithoutEffect(const MoeOptions& moe, TakenFlags* taken) {
  NoteDpRank(taken);
  NoteRounds(moe, taken);
  NoteSingleBatchOverlap(moe, taken);
}

}  // namespace switchyard
