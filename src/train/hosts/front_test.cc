// Rank processes are this program again, with the argument kRankCommand; see main().
#include "train/hosts/front.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <string_view>
#include <utility>

#include "comm/host/control_socket.h"
#include "comm/host/node_group.h"
#include "comm/net/tcp.h"
#include "core/testing.h"
#include "train/app/test_run.h"
#include "train/run/checkpoint.h"

namespace switchyard::train {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using ::testing::HasSubstr;
using FrontTest = testing::RunTest;

// Node 1 leaves, and the rank of node 0 does not notice it.
TEST_F(FrontTest, ARunWhoseRanksAreKilledHasFailed) {
  FrontOptions front{.training = Options(2), .end_time = 100ms};
  front.training.layout.dp = 2;
  front.training.timeout = 60s;
  front.launch.ranks = Launch::Ranks::kProcesses;
  front.launch.nodes = 2;
  front.launch.address = TcpListener::Bind({"127.0.0.1", 0}).address();
  front.spec = [](const std::string&) { return std::string(); };
  const NodeGroup::Options other{
      .nodes = 2, .node = 1, .address = *front.launch.address, .timeout = 60s};
  auto joined = std::async(std::launch::async, [&] { return NodeGroup::Join(other) != nullptr; });
  Progress progress(nullptr, false);
  const std::string error = ErrorOf(
      [&] {
        RunRankProcesses(
            front, [] { return false; }, progress);
      },
      ErrorKind::kPeer);
  EXPECT_TRUE(joined.get());
  EXPECT_THAT(error, HasSubstr("node 1 (127.0.0.1) is gone"));
}

// Runs the only rank of a run in this process.
int ExitCodeOf(const TrainingOptions& options) {
  const std::string endpoint = ControlSocket::UniqueEndpoint();
  const ControlSocket control = ControlSocket::Bind(endpoint);
  RankSpec spec{.control_endpoint = endpoint,
                .arena = SharedArena::Create(1, ArenaBytesPerRank(options))};
  Progress progress(nullptr, false);
  return RunChildRank(options, std::move(spec), progress);
}

TEST_F(FrontTest, OnlyErrorsThatARestartRepeatsAreFinal) {
  const TrainingOptions options = Options(1);
  PrepareRun(options);
  TrainingOptions absent = options, too_long = options;
  absent.data = {dir_ / "none.jsonl"};  // may be there after a restart
  EXPECT_EQ(ExitCodeOf(absent), 1);
  too_long.packing.length = 33;
  EXPECT_EQ(ExitCodeOf(too_long), kInputError);

  // Old folders that cannot be moved out of the way of the last checkpoint.
  const fs::path output = options.trainer.output;
  const fs::path old = output / ".checkpoint-000001.part.old";
  for (const fs::path& folder : {output / "checkpoint-000001", old})
    fs::create_directories(folder / "file");
  EXPECT_EQ(ExitCodeOf(options), kInputError);
  fs::remove_all(old);
  EXPECT_EQ(ExitCodeOf(options), 0);
  EXPECT_EQ(LatestStep(output), 1);
}

}  // namespace
}  // namespace switchyard::train

int main(int argc, char** argv) {
  namespace train = switchyard::train;
  if (argc == 2 && std::string_view(argv[1]) == train::kRankCommand) {
    const switchyard::RankSpec spec = switchyard::InheritRankSpec();  // ends it with its parent
    for (;;) pause();
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
