#include "server/disaggregation/disaggregation.h"

#include <string>
#include <utility>

#include "comm/host/secret_file.h"
#include "core/check.h"
#include "core/duration.h"
#include "core/log.h"
#include "engine/speculative/options.h"

namespace switchyard {

Disaggregation::Disaggregation(const ServerArgs& args, const EnginePlan& plan, const Launch& launch,
                               Front& front) {
  if (!args.engine.disaggregated()) return;
  CHECK(launch.alone() && launch.shares_memory());  // PlanLaunch refuses other launches
  const std::string secret =
      args.dist_secret_file.empty() ? std::string() : ReadSecretFile(args.dist_secret_file);
  if (secret.empty())
    LOG_WARNING(
        "prefill and decode workers are not authenticated: pass --dist-secret-file to all of them");
  KvTransferOptions options{.job = {args.engine, plan},
                            .backend = args.disaggregation_backend,
                            .key = ConnectionKey::Of(secret, "kv transfer"),
                            .bootstrap = {args.host, args.bootstrap_port},
                            .timeout = Milliseconds(args.disaggregation_timeout_seconds),
                            .mover = plan.cuda ? MakeGpuMover() : nullptr};
  KvTransferTargets targets{
      .start = [&front](uint64_t id,
                        RequestOutput first) { front.StartImported(id, std::move(first)); },
      .release = [&front](uint64_t id, const std::string& error) { front.ReleaseKv(id, error); },
      .want = [&front](uint64_t id) { front.WantKv(id); }};
  if (args.engine.disaggregation_mode == "prefill") {
    sender_ = std::make_unique<KvSender>(std::move(options), std::move(targets));
    LOG_INFO("prefill worker: decode workers connect to port {}", sender_->port());
    for (const std::string& flag : FlagsOfDecodeOnly(args.engine.speculative))
      LOG_WARNING("{} has no effect on a prefill worker: only decode workers verify drafts", flag);
    front.Use(sender_.get());
  } else {
    receiver_ = std::make_unique<KvReceiver>(std::move(options), std::move(targets));
    front.Use(receiver_.get());
  }
}

void Disaggregation::Use(const std::shared_ptr<SharedArena>& arena) {
  if (sender_) sender_->Use(arena);
  if (receiver_) receiver_->Use(arena);
}

void Disaggregation::Stop() {
  if (sender_) sender_->Stop();
  if (receiver_) receiver_->Stop();
}

std::string Disaggregation::WhyScalingIsRefused() const {
  if (!sender_ && !receiver_) return {};
  return "with --disaggregation-mode, the ranks cannot be changed";
}

}  // namespace switchyard
