// The connections of stages while ranks wait for each other.
#include "engine/pipeline/stage_links.h"

#include <gmock/gmock.h>

#include <deque>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/rank_threads.h"
#include "core/testing.h"

namespace switchyard {
namespace {

constexpr StageLinkSizes kSizes{.stages = 3, .rows_bytes = 64, .batches = 1, .results_bytes = 64};
const std::string kRows(64, 'r'), kLarge(5000, 'v'), kSmall = "results";

std::string ReceiveRows(StageLinks& links) {
  std::string rows(kRows.size(), '-');
  links.rows().Receive(std::as_writable_bytes(std::span(rows)));
  return rows;
}

using StageBody = std::function<void(RankComm&, StageLinks&)>;

// `nodes`: each stage is on a node of its own, and nodes are connected over TCP.
void RunStages(const MeshShape& mesh, const StageLinkSizes& sizes, const StageBody& body,
               bool nodes = false, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const size_t bytes = RankComm::BytesPerRank(mesh) + StageLinks::BytesPerRank(sizes);
  const RankBody run = [&](int rank, const std::shared_ptr<SharedArena>& arena) {
    const auto comm = RankComm::Create(arena, mesh, rank, {.timeout = timeout});
    StageLinks links(*comm, sizes);
    body(*comm, links);
  };
  if (nodes) {
    RunTcpRankThreads(mesh.world(), mesh.tp, bytes, run);
  } else {
    RunRankThreads(mesh.world(), bytes, run);
  }
}

void RunStages(const MeshShape& mesh, const StageBody& body) { RunStages(mesh, kSizes, body); }

// The first stage waits for room to send rows. The second one reads them only after the last one
// has sent results that exceed the lane. So the first stage receives the results, but does not
// pass them on yet.
TEST(StageLinks, LargeResultsAreReceivedWhileRowsWait) {
  std::latch sent(1);
  RunStages({.pp = 3}, [&](RankComm& comm, StageLinks& links) {
    const auto rows = std::as_bytes(std::span(kRows));
    switch (comm.mesh.pp_rank()) {
      case 0:
        for (int i = 0; i < 3; ++i) links.rows().Send(rows);
        EXPECT_EQ(links.ReceiveResults(), kLarge);
        links.PassOnResults(kLarge);
        break;
      case 1:
        sent.wait();
        for (int i = 0; i < 3; ++i) EXPECT_EQ(ReceiveRows(links), kRows);
        EXPECT_EQ(links.ReceiveResults(), kLarge);
        links.PassOnResults(kLarge);  // no later stage needs them
        break;
      default:
        links.SendResults(kLarge);
        sent.count_down();
    }
  });
}

// Two attention groups: the second rank of the first stage waits for the first one, which waits for
// room until both ranks of the last stage have sent results that exceed the lane.
TEST(StageLinks, LargeResultsAreReceivedWhileARankWaitsForItsStage) {
  std::latch sent(2);
  RunStages({.tp = 2, .dp = 2, .pp = 3}, [&](RankComm& comm, StageLinks& links) {
    const bool first = comm.mesh.tp_rank() == 0;
    switch (comm.mesh.pp_rank()) {
      case 0:
        for (int step = 0; step < 2; ++step) {
          if (first) {
            links.SendControl(std::string(size_t{1} << 20, 'c'));
            links.BeginBroadcast();
          } else {
            links.AwaitBroadcast(/*idle=*/false);
          }
          EXPECT_EQ(comm.tp->Broadcast(kSmall, /*idle=*/true), kSmall);
        }
        EXPECT_EQ(links.ReceiveResults(), kLarge);
        break;
      case 1:
        sent.wait();
        if (!first) break;
        for (int step = 0; step < 2; ++step)
          EXPECT_EQ(links.ReceiveControl(/*idle=*/true).size(), size_t{1} << 20);
        break;
      default:
        links.SendResults(kLarge);
        sent.count_down();
    }
  });
}

constexpr size_t kLargestRouted = 1000;

// What happens in a step, the same on all ranks. Sizes in bytes; of a group: −1: nothing is sent.
struct RandomStep {
  size_t control = 0;
  std::vector<int> rows, results;  // of each attention group
  bool runs = false;               // whether a group has rows
};

std::vector<RandomStep> RandomSteps(int steps, int groups, uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return std::uniform_int_distribution(0, n - 1)(random); };
  std::vector<RandomStep> all(steps);
  for (RandomStep& step : all) {
    step.control = below(6) == 0 ? 200'000 + below(500'000) : below(100);
    for (int group = 0; group < groups; ++group) {
      step.rows.push_back(below(3) == 0 ? -1 : 1 + below(64));
      const bool results = step.rows.back() > 0 && below(2) == 0;
      step.results.push_back(results ? below(below(3) == 0 ? 1000 : 64) : -1);
      step.runs |= step.rows.back() > 0;
    }
  }
  return all;
}

// The waits of the rank loop in random order of sizes: messages, rows and results that exceed their
// lanes, groups without rows, steps without a pass, and ranks that are slow at random places.
class RandomLoop {
 public:
  RandomLoop(RankComm& comm, StageLinks& links, int passes, uint32_t seed)
      : comm_(comm), links_(links), passes_(passes), random_(seed + comm.mesh.rank()) {}

  void Run(const std::vector<RandomStep>& steps) {
    for (const RandomStep& step : steps) {
      Pause();
      Control(step);
      comm_.tp->Barrier("counts");
      if (step.runs) Pass(step);
      if (!open_.empty() && (!step.runs || std::ssize(open_) >= passes_)) Process();
    }
    while (!open_.empty()) Process();
  }

 private:
  int group() const { return comm_.mesh.dp_rank(); }
  std::string TextOf(size_t size) const { return std::string(size, 'a' + size % 26); }
  // Only the first rank of a group gets large results, and only from the last stage.
  std::string ResultsOf(const RandomStep& step, bool large) const {
    const auto size = static_cast<size_t>(step.results[group()]);
    return TextOf(large && comm_.mesh.attn_tp_rank() == 0 ? size : size % 64);
  }
  void Pause() {
    if (random_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 900));
  }

  void Control(const RandomStep& step) {
    const Mesh& mesh = comm_.mesh;
    std::string text = TextOf(step.control);
    if (mesh.tp_rank() == 0) {
      if (!mesh.first_stage()) text = links_.ReceiveControl(/*idle=*/false);
      if (!mesh.last_stage()) links_.SendControl(text);
      links_.BeginBroadcast();
    } else {
      links_.AwaitBroadcast(/*idle=*/false);
    }
    EXPECT_EQ(comm_.tp->Broadcast(text), TextOf(step.control));
  }

  void Pass(const RandomStep& step) {
    const Mesh& mesh = comm_.mesh;
    std::string rows(static_cast<size_t>(std::max(0, step.rows[group()])), 'r');
    links_.rows().SetTag(++pass_);
    if (!rows.empty() && !mesh.first_stage())
      links_.rows().Receive(std::as_writable_bytes(std::span(rows)));
    links_.Advance();
    Pause();
    comm_.tp->Barrier("layer");
    if (!rows.empty() && !mesh.last_stage()) links_.rows().Send(std::as_bytes(std::span(rows)));
    Pause();
    if (rows.size() % 2 == 1 && mesh.attn_tp_rank() == 0) Routed(rows.size());
    if (mesh.last_stage() && step.results[group()] >= 0)
      links_.SendResults(ResultsOf(step, /*large=*/true));
    open_.push_back(&step);
  }

  // Chosen experts of some batches.
  void Routed(size_t rows) {
    std::string experts = TextOf(rows % 16 == 1 ? kLargestRouted : rows);
    if (!comm_.mesh.first_stage())
      links_.routed().Receive(std::as_writable_bytes(std::span(experts)));
    if (!comm_.mesh.last_stage()) links_.routed().Send(std::as_bytes(std::span(experts)));
  }

  void Process() {
    const RandomStep& step = *open_.front();
    open_.pop_front();
    if (comm_.mesh.last_stage() || step.results[group()] < 0) return;
    EXPECT_EQ(links_.ReceiveResults(), ResultsOf(step, comm_.mesh.first_stage()));
    links_.PassOnResults(ResultsOf(step, /*large=*/false));
  }

  RankComm& comm_;
  StageLinks& links_;
  const int passes_;
  std::mt19937 random_;
  uint64_t pass_ = 0;
  std::deque<const RandomStep*> open_;  // passes in flight
};

TEST(StageLinks, NoOrderOfWaitsIsACircle) {
  uint32_t seed = 0;
  for (const MeshShape& mesh :
       {MeshShape{.tp = 2, .dp = 2, .pp = 3}, MeshShape{.pp = 4},
        MeshShape{.tp = 4, .dp = 2, .pp = 2}, MeshShape{.tp = 3, .dp = 3, .pp = 4}}) {
    for (const bool nodes : {false, true}) {
      for (const int depth : {0, 2}) {
        if (nodes && depth > 0) continue;
        SCOPED_TRACE(fmt::format("pp {} tp {} depth {}", mesh.pp, mesh.tp, depth));
        const int passes = mesh.pp + depth;
        const StageLinkSizes sizes{.stages = mesh.pp,
                                   .rows_bytes = 64,
                                   .routed_bytes = kLargestRouted,
                                   .batches = passes,
                                   .results_bytes = 64};
        const std::vector<RandomStep> steps = RandomSteps(nodes ? 20 : 40, mesh.dp, ++seed);
        const StageBody body = [&](RankComm& comm, StageLinks& links) {
          links.AwaitLoaded();
          RandomLoop(comm, links, passes, seed).Run(steps);
        };
        RunStages(mesh, sizes, body, nodes);
      }
    }
  }
}

// The last stage does not read, so the first one fills the lane and waits.
TEST(StageLinks, AWaitForAStageWithoutProgressNamesBothStages) {
  const auto run = [](const StageBody& body) {
    return ErrorOf(
        [&] {
          RunStages({.pp = 2}, kSizes, body, /*nodes=*/false, std::chrono::milliseconds(200));
        },
        ErrorKind::kTimeout);
  };
  EXPECT_THAT(
      run([](RankComm& comm, StageLinks& links) {
        if (comm.mesh.first_stage())
          for (;;) links.rows().Send(std::as_bytes(std::span(kRows)));
      }),
      ::testing::HasSubstr("rank 0 (stage 0) waited 0.2 s for rank 1 (stage 1) in pipeline: "
                           "hidden rows, buffer of the receiver"));
  EXPECT_THAT(
      run([](RankComm& comm, StageLinks& links) {
        if (comm.mesh.first_stage()) links.ReceiveResults();
      }),
      ::testing::HasSubstr("rank 0 (stage 0) waited 0.2 s for rank 1 (stage 1) in pipeline: "
                           "results of the last stage"));
  EXPECT_THAT(
      run([](RankComm& comm, StageLinks& links) {
        if (comm.mesh.last_stage()) links.ReceiveControl(/*idle=*/false);
      }),
      ::testing::HasSubstr("rank 1 (stage 1) waited 0.2 s for rank 0 (stage 0) in pipeline: "
                           "messages of the front"));
  EXPECT_THAT(run([](RankComm& comm, StageLinks& links) {
                if (comm.mesh.first_stage()) links.AwaitLoaded();
              }),
              ::testing::HasSubstr("for rank 1 (stage 1) in pipeline: model loaded"));
}

}  // namespace
}  // namespace switchyard
