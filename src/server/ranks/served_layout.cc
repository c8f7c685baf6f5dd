#include "server/ranks/served_layout.h"

#include <signal.h>

#include <string>
#include <utility>

#include "core/error.h"
#include "server/ranks/served_weights.h"

namespace switchyard {

ServedLayout::ServedLayout(const ServedRanks& served, RankJob job, std::vector<FileStamp> weights,
                           Membership membership, bool checks)
    : served_(served),
      job_(std::move(job)),
      weights_(std::move(weights)),
      membership_(std::move(membership)),
      restarts_(checks) {}

std::unique_ptr<EngineRanks> ServedLayout::Start(EngineRanks::Events events,
                                                 std::function<bool()> give_up) {
  if (std::exchange(restarts_, true)) {
    if (const std::string changes = DescribeChanges(weights_); !changes.empty())
      throw Error(ErrorKind::kResource, "the ranks cannot restart with changed weights" + changes);
    if (served_.launch.rejoins) {
      const auto stop = [&give_up] { return give_up() ? SIGTERM : 0; };
      auto membership = Lead(served_.launch, job_.config, job_.plan, stop, /*restart=*/true);
      if (!membership) return nullptr;
      membership_ = *std::move(membership);
    }
  }
  return std::make_unique<EngineRanks>(
      [&](const std::string& endpoint, RankHost::OnExit on_exit) {
        return StartRanks(
            served_.launch, membership_, job_, served_.restart, endpoint,
            WithChangedFiles(weights_, std::move(on_exit)),
            [&cancelled = served_.cancelled, give_up] { return cancelled || give_up(); },
            served_.on_arena);
      },
      std::move(membership_.nodes), std::move(events));
}

}  // namespace switchyard
