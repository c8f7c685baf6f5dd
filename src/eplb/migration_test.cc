// Layers switch on all ranks before the same pass, completely or not at all, and no old experts
// remain allocated. Ranks are threads.
#include "eplb/migration.h"

#include <gmock/gmock.h>

#include <latch>
#include <mutex>

#include "core/testing.h"
#include "eplb/test_movable.h"
#include "moe/cpu/cpu_backend.h"

namespace switchyard {
namespace {

using kernels::SameBits;
using ::testing::HasSubstr;

constexpr int kRanks = 4, kExperts = 10, kRedundant = 2;

ExpertPlacement Somewhere(uint32_t seed) {
  return RandomEvenPlacement(kExperts, kRedundant, kRanks, seed);
}

void OnRanks(const std::function<void(RankComm&)>& body,
             std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const MeshShape mesh{.tp = kRanks, .ep = kRanks};
  RunRankThreads(kRanks, RankComm::BytesPerRank(mesh) + ExpertCourier::BytesPerRank(kRanks),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   const auto comm = RankComm::Create(std::move(arena), mesh, rank, {timeout});
                   body(*comm);
                 });
}

std::vector<LayerMove> MovesOf(const FakeExperts& experts, uint32_t seed) {
  std::vector<LayerMove> moves;
  for (const int layer : experts.layers()) moves.push_back({layer, Somewhere(seed + layer)});
  return moves;
}

// Runs to the end; returns the number of steps.
int RunToEnd(Migration& migration) {
  int steps = 1;
  // Sleeps, because loading threads have low priority and may have to wait for a core.
  for (; migration.Step(); ++steps) std::this_thread::sleep_for(std::chrono::microseconds(50));
  return steps;
}

TEST(Migration, LayersSwitchOnAllRanksBeforeTheSamePass) {
  for (const int chunk : {-1, 1, 2, 3}) {
    SCOPED_TRACE(chunk);
    std::mutex mutex;
    std::vector<std::vector<int>> done(kRanks);  // layers that have switched, by step
    OnRanks([&](RankComm& comm) {
      FakeExperts experts(5, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
      const auto moves = MovesOf(experts, 7);
      // Ranks load at different speeds.
      experts.on_load = [&](int, int32_t) {
        std::this_thread::sleep_for(std::chrono::microseconds(300 * comm.mesh.rank()));
      };
      Migration migration(moves, {.layers_per_chunk = chunk}, experts, *comm.tp);
      std::vector<int> mine;
      for (bool more = true; more;) {
        more = migration.Step();
        int switched = 0;
        for (const LayerMove& move : moves) {
          const auto now = experts.PlacementOf(move.layer).physical_to_logical();
          switched += std::ranges::equal(now, move.placement.physical_to_logical()) ? 1 : 0;
          // A layer has the experts of its old or of its new placement, never a mix.
          EXPECT_EQ(experts.Held(move.layer), experts.Wanted(move.layer));
        }
        EXPECT_EQ(switched, migration.layers_moved());
        mine.push_back(switched);
      }
      EXPECT_EQ(mine.back(), 5);
      EXPECT_EQ(migration.layer(), -1);
      EXPECT_EQ(migration.error(), "");
      const std::lock_guard lock(mutex);
      done[comm.mesh.rank()] = mine;
    });
    for (const auto& one : done) EXPECT_EQ(one, done[0]);
    for (size_t i = 1; i < done[0].size(); ++i) {
      const int more = done[0][i] - done[0][i - 1];
      EXPECT_TRUE(more == 0 || more == (chunk < 0 ? 5 : chunk) || done[0][i] == 5) << more;
    }
  }
}

TEST(Migration, AStepBeginsToLoadWhatItsBudgetAllows) {
  OnRanks([](RankComm& comm) {
    FakeExperts experts(4, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
    std::atomic<int> loads = 0;
    experts.on_load = [&](int, int32_t) { ++loads; };
    // The budget is less than one expert. Each step still starts one, so that the migration ends.
    Migration migration(MovesOf(experts, 3), {.bytes_per_step = 60}, experts, *comm.tp);
    int steps = 1;
    for (; migration.Step(); ++steps) EXPECT_LE(loads, steps);
    EXPECT_EQ(loads, migration.experts_loaded());
    EXPECT_GT(loads, 4);
    // The budget is 60 bytes a step; an expert has 100.
    EXPECT_GE(steps, loads * FakeExperts::kBytes / 60);
  });
}

TEST(Migration, ThousandInARowLeakNothing) {
  OnRanks([](RankComm& comm) {
    FakeExperts experts(2, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
    const int held = experts.alive();
    for (uint32_t i = 0; i < 1000; ++i) {
      {
        Migration migration(MovesOf(experts, 100 * i), {}, experts, *comm.tp);
        RunToEnd(migration);
        ASSERT_EQ(migration.error(), "");
      }
      ASSERT_EQ(experts.alive(), held);
    }
  });
}

// The migration must also free received experts that no slot holds any more.
TEST(Migration, ThousandThatAreSentLeakNothing) {
  OnRanks([](RankComm& comm) {
    FakeExperts experts(2, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
    ExpertCourier courier(comm);
    const auto owners = [&] {
      std::vector<std::weak_ptr<const void>> all;
      for (const int layer : experts.layers())
        for (int i = 0; i < std::ssize(experts.Held(layer)); ++i)
          all.emplace_back(std::as_const(experts).Held(layer, i).owner);
      return all;
    };
    int received = 0;
    for (uint32_t i = 0; i < 1000; ++i) {
      const auto before = owners();
      {
        Migration migration(MovesOf(experts, 100 * i), {.topology = {.ranks = kRanks}}, experts,
                            *comm.tp, &courier);
        RunToEnd(migration);
        ASSERT_EQ(migration.error(), "");
        received += migration.experts_received();
      }
      const auto now = owners();
      for (const auto& old : before) {
        const auto is_old = [&](const auto& one) {
          return !one.owner_before(old) && !old.owner_before(one);
        };
        ASSERT_TRUE(old.expired() || std::ranges::any_of(now, is_old)) << i;
      }
    }
    EXPECT_GT(received, 1000);
  });
}

TEST(Migration, WhereOneRankCannotLoadAllKeepWhatTheyHave) {
  for (const int chunk : {1, -1}) {
    OnRanks([&](RankComm& comm) {
      FakeExperts experts(3, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
      const int held = experts.alive();
      const bool broken = comm.mesh.rank() == 2;
      experts.on_load = [&](int layer, int32_t) {
        if (broken && layer == 2) throw Invalid("expert cut off");
      };
      {
        Migration migration(MovesOf(experts, 5), {.layers_per_chunk = chunk}, experts, *comm.tp);
        RunToEnd(migration);
        EXPECT_EQ(migration.error(), "rank 2 could not load an expert: expert cut off");
        EXPECT_FALSE(migration.timed_out());
        EXPECT_EQ(migration.layers_moved(), chunk == 1 ? 1 : 0);
      }
      EXPECT_EQ(experts.alive(), held);
      for (const int layer : experts.layers())
        EXPECT_EQ(experts.Held(layer), experts.Wanted(layer));
      // The migration can be retried.
      experts.on_load = {};
      Migration again(MovesOf(experts, 9), {}, experts, *comm.tp);
      RunToEnd(again);
      EXPECT_EQ(again.layers_moved(), 3);
    });
  }
}

TEST(Migration, AReasonMayBeMissingOrLong) {
  std::string longer(98, 'x');
  longer.append("éé");
  for (const std::string& why : {std::string(), longer}) {
    OnRanks([&](RankComm& comm) {
      FakeExperts experts(2, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
      const bool broken = comm.mesh.rank() == 2;
      experts.on_load = [&](int, int32_t) {
        if (broken) throw std::runtime_error(why);
      };
      Migration migration(MovesOf(experts, 5), {.layers_per_chunk = -1}, experts, *comm.tp);
      RunToEnd(migration);
      EXPECT_EQ(migration.layers_moved(), 0);
      // Other ranks have a prefix of the reason that ends with a whole character.
      EXPECT_EQ(migration.error(),
                "rank 2 could not load an expert: " + (broken ? why : why.substr(0, 98)));
    });
  }
}

// Progress is only observed between passes, so a few long passes do not count as a stall.
TEST(Migration, TheWatchdogWaitsForAFewPassesHoweverLong) {
  OnRanks([](RankComm& comm) {
    FakeExperts experts(3, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
    std::latch released(1);
    experts.on_load = [&](int, int32_t) { released.wait(); };
    Migration migration(MovesOf(experts, 5), {.timeout = std::chrono::milliseconds(1)}, experts,
                        *comm.tp);
    int steps = 0;
    for (; migration.error().empty(); ++steps) {
      migration.Step();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_GT(steps, Migration::kMinStalledSteps);
    EXPECT_TRUE(migration.timed_out());
    released.count_down();
    RunToEnd(migration);
  });
}

TEST(Migration, TheWatchdogAbortsWithoutProgress) {
  OnRanks([](RankComm& comm) {
    FakeExperts experts(3, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
    std::latch released(1);
    experts.on_load = [&](int, int32_t) {
      if (comm.mesh.rank() == 1) released.wait();
    };
    Migration migration(MovesOf(experts, 5), {.timeout = std::chrono::milliseconds(50)}, experts,
                        *comm.tp);
    // Passes continue; only the destructor waits for the stuck loader.
    while (migration.error().empty()) ASSERT_TRUE(migration.Step());
    EXPECT_TRUE(migration.timed_out());
    EXPECT_THAT(migration.error(), HasSubstr("no rank has made progress for 0.05 s"));
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(migration.Step());
    released.count_down();
    RunToEnd(migration);
    EXPECT_EQ(migration.layers_moved(), 0);
    for (const int layer : experts.layers()) EXPECT_EQ(experts.Held(layer), experts.Wanted(layer));
  });
}

TEST(Migration, ADeadRankEndsTheOthersDuringAMigration) {
  const std::string what = ErrorOf(
      [] {
        OnRanks([](RankComm& comm) {
          FakeExperts experts(3, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
          Migration migration(MovesOf(experts, 5), {}, experts, *comm.tp);
          for (int step = 0; migration.Step(); ++step) {
            for (const int layer : experts.layers())
              EXPECT_EQ(experts.Held(layer), experts.Wanted(layer));
            if (comm.mesh.rank() == 3 && migration.layers_moved() == 1)
              throw Error(ErrorKind::kPeer, "rank 3 was killed");
          }
        });
      },
      ErrorKind::kPeer);
  EXPECT_THAT(what, HasSubstr("rank 3 was killed"));
}

TEST(Migration, ExpertsComeFromRanksThatHoldThem) {
  for (const int chunk : {1, 2, -1}) {
    OnRanks([&](RankComm& comm) {
      FakeExperts experts(4, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
      experts.on_load = [](int, int32_t) { FAIL() << "an expert was loaded"; };
      ExpertCourier courier(comm);
      for (uint32_t round = 0; round < 10; ++round) {
        Migration migration(MovesOf(experts, 100 * round),
                            {.layers_per_chunk = chunk, .topology = {.ranks = kRanks}}, experts,
                            *comm.tp, &courier);
        for (bool more = true; more;) {
          more = migration.Step();
          for (const int layer : experts.layers())
            ASSERT_EQ(experts.Held(layer), experts.Wanted(layer));
        }
        EXPECT_EQ(migration.error(), "");
        EXPECT_EQ(migration.layers_moved(), 4);
        EXPECT_EQ(migration.experts_loaded(), 0);
        EXPECT_GT(migration.experts_received(), 0);
      }
    });
  }
}

TEST(Migration, TransfersAreDroppedIfOneRankFails) {
  OnRanks([](RankComm& comm) {
    FakeExperts experts(3, ExpertPlacement::Trivial(kExperts, kRedundant), comm.mesh);
    ExpertCourier courier(comm);
    const bool broken = comm.mesh.rank() == 1;
    experts.on_prepare = [&](int layer) {
      if (broken && layer == 2) throw Invalid("no memory");
    };
    {
      Migration migration(MovesOf(experts, 5), {.topology = {.ranks = kRanks}}, experts, *comm.tp,
                          &courier);
      RunToEnd(migration);
      EXPECT_EQ(migration.layers_moved(), 1);
      EXPECT_THAT(migration.error(), HasSubstr(broken ? "no memory" : "rank 1"));
      EXPECT_FALSE(courier.active());
    }
    experts.on_prepare = {};
    Migration again(MovesOf(experts, 9), {.topology = {.ranks = kRanks}}, experts, *comm.tp,
                    &courier);
    RunToEnd(again);
    EXPECT_EQ(again.layers_moved(), 3);
    for (const int layer : experts.layers()) EXPECT_EQ(experts.Held(layer), experts.Wanted(layer));
  });
}

// The experts of one real MoE layer, so that passes can run while a migration moves them.
class TestLayers : public MovableExperts {
 public:
  TestLayers(const TestLayer& source, MoeLayer& layer, const Mesh& mesh)
      : source_(source), layer_(layer), mesh_(mesh) {}
  std::vector<int> layers() const override { return {0}; }
  const ExpertPlacement& PlacementOf(int) const override { return layer_.placement(); }
  OwnedExpert Held(int, int local) const override { return layer_.Expert(local); }
  PreparedLayer Prepare(int layer, const ExpertPlacement& placement, const Arrived&,
                        const Pace& pace) override {
    PreparedLayer prepared{.layer = layer, .placement = placement};
    const Range own = ExpertsOfRank(placement.num_physical(), mesh_.ep(), mesh_.ep_rank());
    for (int p = own.begin; p < own.end; ++p) {
      pace(1);
      prepared.experts.push_back(
          {.weights = TestLayer::Slice(source_.whole.experts[placement.physical_to_logical()[p]],
                                       mesh_.moe_tp(), mesh_.moe_tp_rank())});
    }
    return prepared;
  }
  std::vector<OwnedExpert> Switch(PreparedLayer prepared) override {
    return layer_.SwitchPlacement(std::move(prepared.placement), std::move(prepared.experts));
  }

 private:
  const TestLayer& source_;
  MoeLayer& layer_;
  const Mesh mesh_;
};

// Number of passes after which pass sizes repeat, for decode and other passes.
constexpr int kAllTokenCounts = 21;

// Outputs of passes. If *passes is 0, three migrations run one after the other during the passes,
// and *passes receives the number of passes. Otherwise *passes passes run without a migration.
std::vector<float> Outputs(const TestLayer& layer, const MoeOptions& options, int* passes) {
  const bool moving = *passes == 0;
  const auto last_call = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const MoeShape shape = layer.Shape(7);
  const MeshShape mesh{.tp = kRanks, .ep = kRanks};
  std::vector<std::vector<float>> outs(kRanks);
  RunMoeRanks(options, shape, mesh, [&](RankComm& comm, ThreadPool& pool) {
    MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, ScattersTokens(options, mesh)),
                 MakeCpuMoe(options, shape, comm, pool));
    const auto state = moe.MakeState();
    TestLayers experts(layer, moe, comm.mesh);
    std::unique_ptr<Migration> migration;
    int moved = 0, steps = 0, pass = 0;
    for (;; ++pass) {
      if (!moving && pass == *passes) break;
      if (moving && moved >= 3 && pass >= kAllTokenCounts) break;
      const bool late = comm.mesh.rank() == 0 && std::chrono::steady_clock::now() > last_call;
      if (!comm.tp->Broadcast(late ? "late" : "").empty()) break;  // all ranks end together
      // Sleeps, because loading threads may have to wait for a core.
      if (migration && ++steps % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (moving && !migration)
        migration =
            std::make_unique<Migration>(std::vector<LayerMove>{{0, Somewhere(1000 + pass)}},
                                        MigrationOptions{.bytes_per_step = 2}, experts, *comm.tp);
      if (migration && !migration->Step()) {
        moved += migration->layers_moved();
        migration.reset();
      }
      const int64_t tokens = 1 + pass % 7, decoding = pass % 3 == 0 ? tokens : tokens / 2;
      const std::vector<float> hidden = layer.Hidden(tokens, pass);
      std::vector<float> out(hidden.size(), NAN);
      moe.Forward(*state, hidden.data(), {{&tokens, 1}, {&decoding, 1}}, out.data());
      auto& all = outs[comm.mesh.rank()];
      all.insert(all.end(), out.begin(), out.end());
    }
    EXPECT_GE(moved, moving ? 3 : 0);
    EXPECT_GE(pass, kAllTokenCounts);
    if (moving && comm.mesh.rank() == 0) *passes = pass;
  });
  return outs[0];
}

TEST(Migration, BitsDependOnNeitherPlacementNorMigration) {
  TestLayer layer({.format = WeightFormat::kBF16,
                   .hidden = 96,
                   .intermediate = 64,
                   .num_experts = kExperts,
                   .shared = true});
  layer.config.placement = ExpertPlacement::Trivial(kExperts, kRedundant);
  for (const A2aChoice& choice : AllA2aChoices()) {
    if (choice.a2a == "none") continue;  // the summation order of `none` depends on the rank
    SCOPED_TRACE(choice.Describe());
    MoeOptions options{
        .a2a_backend = choice.a2a, .deepep_mode = choice.mode, .row_dtype = DType::kBF16};
    options.num_redundant_experts = kRedundant;
    int passes = 0;
    const std::vector<float> moving = Outputs(layer, options, &passes);
    EXPECT_TRUE(SameBits(moving, Outputs(layer, options, &passes)));
  }
}

}  // namespace
}  // namespace switchyard
