// The sub-commands of switchyard_tools in a program without them (SWITCHYARD_TOOLS=OFF). Each names
// the way to build it.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/commands.h"
#include "apps/plan.h"
#include "core/error.h"

namespace switchyard {
namespace {

int Absent(std::string_view command) {
  throw Invalid(
      "switchyard {}: this program was built without bench, plan, simulate, route, train and "
      "token-map, so that its first start takes less time. Build them: cmake -B build/release "
      "-DSWITCHYARD_TOOLS=ON && scripts/build switchyard",
      command);
}

}  // namespace

int RunBench(const BenchArgs&, const std::shared_ptr<const MoeBackends>&) {
  return Absent("bench");
}
int RunBenchServe(const std::vector<std::string>&) { return Absent("bench serve"); }
int RunOneBatch(const OneBatchArgs&) { return Absent("bench one-batch"); }
int RunPlan(const PlanArgs&, const std::shared_ptr<const MoeBackends>&) { return Absent("plan"); }
int RunSimulate(const SimulateArgs&, const std::shared_ptr<const MoeBackends>&) {
  return Absent("simulate");
}
int RunRoute(const std::vector<std::string>&) { return Absent("route"); }
int RunTokenMap(const TokenMapArgs&) { return Absent("token-map"); }
int RunTrain(const TrainArgs&) { return Absent("train"); }
int RunTrainRank(int, char**) { return Absent("train-rank"); }
int RunTrainScore(const TrainScoreArgs&) { return Absent("train-score"); }
int RunTrainPicture(const TrainPictureArgs&) { return Absent("train-picture"); }
int RunTrainTokenizer(const TrainTokenizerArgs&) { return Absent("train-tokenizer"); }

}  // namespace switchyard
