#include "server/ranks/served_layout.h"

#include <signal.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "core/error.h"
#include "core/log.h"
#include "core/verify_files.h"
#include "engine/active_layout.h"
#include "engine/checks/checks.h"
#include "engine/config.h"
#include "engine/speculative/draft_model.h"
#include "model/weights.h"
#include "model/weights/safetensors.h"
#include "server/ranks/new_weights.h"

namespace switchyard {
namespace {

constexpr double kGiB = 1 << 30;

// Logs one line per 10 % of the verification.
class ProgressLog {
 public:
  void Show(uint64_t done, uint64_t total) {
    constexpr uint64_t kMinBytes = uint64_t{256} << 20;  // fewer bytes take less than a second
    const auto tenth = static_cast<int>(10 * done / std::max<uint64_t>(total, 1));
    if (total < kMinBytes || tenth <= logged_) return;
    logged_ = tenth;
    LOG_INFO("verifying weights {}% ({:.1f} of {:.1f} GiB)", 10 * tenth,
             static_cast<double>(done) / kGiB, static_cast<double>(total) / kGiB);
  }

 private:
  int logged_ = 0;  // last logged tenth of the bytes
};

}  // namespace

std::optional<std::vector<FileStamp>> CheckWeights(const ServerArgs& args,
                                                   const std::function<bool()>& interrupted) {
  const std::string& dir = args.engine.model_path;
  if (args.engine.load_format == "dummy") {
    if (args.verify_weights.empty()) return std::vector<FileStamp>();
    throw Invalid("--verify-weights {}: --load-format dummy has no weights to verify",
                  args.verify_weights);
  }
  CheckFlags(args.engine);  // what ReadDraftConfig relies on
  // Reads the configuration first, so that errors in it are reported before the verification, which
  // may take minutes.
  const ModelConfig config = ReadModelConfig(args.engine);
  std::vector<FileStamp> files = WeightFiles(dir);
  if (!args.verify_weights.empty()) {
    ProgressLog log;
    const VerifyOptions options{
        .progress = [&](uint64_t done, uint64_t total) { log.Show(done, total); },
        .cancelled = interrupted,
        .threads = static_cast<int>(std::thread::hardware_concurrency())};
    if (!VerifyFiles(dir, files, args.verify_weights, options)) return std::nullopt;
    LOG_INFO("{}: all {} weight files match {}", dir, files.size(), args.verify_weights);
  }
  CheckCheckpoint(dir, config);
  CheckDraftCheckpoint(args.engine, config);
  return files;
}

std::string DescribeChanges(const std::vector<FileStamp>& files) {
  std::string changes;
  for (const FileStamp& file : files) {
    const std::string change = DescribeChange(file);
    if (!change.empty()) changes += "; " + change;
  }
  return changes;
}

RankHost::OnExit WithChangedFiles(std::vector<FileStamp> files, RankHost::OnExit on_exit) {
  return
      [files = std::move(files), on_exit = std::move(on_exit)](const std::string& how, bool cause) {
        // A rank without a heartbeat may be blocked in its file system. A check of the files would
        // then block too, so it is skipped.
        if (how.find("heartbeat") != std::string::npos) return on_exit(how, cause);
        on_exit(how + DescribeChanges(files), cause);
      };
}

ServedLayout::ServedLayout(const ServedRanks& served, RankJob job, std::vector<FileStamp> weights,
                           Membership membership, bool checks)
    : served_(served),
      job_(std::move(job)),
      weights_(std::move(weights)),
      membership_(std::move(membership)),
      restarts_(checks) {}

RankJob ServedLayout::JobOfEpoch() const {
  RankJob job = job_;
  const std::lock_guard lock(mutex_);
  if (!location_.empty()) job.config.moe.init_expert_location = location_;
  return job;
}

// While ranks are absent, the placement is that of a smaller layout.
void ServedLayout::Keep(const PlacementChanged& placement) {
  const ModelConfig& model = job_.plan.model;
  if (placement.ranks != job_.config.mesh.ep || !model.has_moe()) return;
  std::string location = LocationOf(placement.slots, model.num_layers());
  if (location.size() > SharedArena::kMaxMessageBytes) return;  // the next epoch begins without it
  const std::lock_guard lock(mutex_);
  location_ = std::move(location);
}

std::unique_ptr<EngineRanks> ServedLayout::Start(EngineRanks::Events events,
                                                 std::function<bool()> give_up,
                                                 bool may_be_absent) {
  const RankJob job = JobOfEpoch();
  RestartOptions restart = served_.restart;
  if (job.config.moe.init_expert_location != job_.config.moe.init_expert_location)
    restart.location = job.config.moe.init_expert_location;
  if (std::exchange(restarts_, true)) {
    if (const std::string changes = DescribeChanges(weights_); !changes.empty())
      throw Error(ErrorKind::kResource, "the ranks cannot restart with changed weights" + changes);
    if (served_.launch.rejoins) {
      const auto stop = [&give_up] { return give_up() ? SIGTERM : 0; };
      auto membership =
          Lead(served_.launch, job_.config, job_.plan, stop, /*restart=*/true, restart.location);
      if (!membership) return nullptr;
      membership_ = *std::move(membership);
    }
  }
  if (may_be_absent && job.config.elastic_ep_backend != "none")
    restart.runs_with = [job](const std::vector<int>& ranks) {
      return CanServe(job.config, job.plan, ranks);
    };
  events.on_message = [this, next = std::move(events.on_message)](const EngineMessage& message) {
    const auto* placement = std::get_if<PlacementChanged>(&message);
    return placement ? Keep(*placement) : next(message);
  };
  return std::make_unique<EngineRanks>(
      [&](const std::string& endpoint, RankHost::OnExit on_exit) {
        return StartRanks(
            served_.launch, membership_, job, restart, endpoint,
            WithChangedFiles(weights_, std::move(on_exit)),
            [&cancelled = served_.cancelled, give_up] { return cancelled || give_up(); },
            served_.on_arena);
      },
      std::move(membership_.nodes), std::move(events));
}

}  // namespace switchyard
