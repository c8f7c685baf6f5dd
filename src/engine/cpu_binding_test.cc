#include "engine/cpu_binding.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <set>
#include <thread>

#include "core/temporary_directory.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

// A fake /sys with eight CPUs, so that no other process reserves CPUs of the test.
class CpuBindingTest : public ::testing::Test {
 protected:
  CpuBindingTest() {
    for (int cpu = 0; cpu < 8; ++cpu) {
      fs::create_directories(root_ / fmt::format("sys/devices/system/cpu/cpu{}", cpu));
      all_.push_back(cpu);
    }
  }

  CpuBinding Bind(int index, int count, int threads = 0) {
    return BindToShare(all_, index, count, threads, root_);
  }

  const TemporaryDirectory temporary_;
  const fs::path& root_ = temporary_.path();
  CpuList all_;
};

TEST_F(CpuBindingTest, RanksShareTheCpusOut) {
  const CpuBinding a = Bind(0, 2), b = Bind(1, 2);
  EXPECT_EQ(a.threads, 4);
  EXPECT_THAT(a.cpus, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(b.cpus, ElementsAre(4, 5, 6, 7));
}

TEST_F(CpuBindingTest, ServersBesideOneAnotherTakeDifferentCpus) {
  const CpuBinding first = Bind(1, 2, 2), second = Bind(1, 2, 2);
  EXPECT_THAT(first.cpus, ElementsAre(4, 5));
  EXPECT_THAT(second.cpus, ElementsAre(6, 7));
  const CpuBinding third = Bind(1, 2, 1);
  EXPECT_EQ(third.threads, 1);
  EXPECT_THAT(third.cpus, IsEmpty()) << "no CPU is left, so it is not pinned";
}

TEST_F(CpuBindingTest, MoreThreadsOrRanksThanCpusAreNotPinned) {
  const CpuBinding threads = Bind(0, 2, 5);
  EXPECT_EQ(threads.threads, 5);
  EXPECT_THAT(threads.cpus, IsEmpty());
  const CpuBinding ranks = Bind(8, 9);
  EXPECT_EQ(ranks.threads, 1);
  EXPECT_THAT(ranks.cpus, IsEmpty());
}

TEST_F(CpuBindingTest, ListsHaveAPartForEachRank) {
  EXPECT_THAT(ParseCpuBind("auto", 0, 2), IsEmpty());
  EXPECT_THAT(ParseCpuBind("none", 0, 2), IsEmpty());
  EXPECT_THAT(ParseCpuBind("0-1,6|4-5", 2, 2),
              ElementsAre(ElementsAre(0, 1, 6), ElementsAre(4, 5)));
}

TEST_F(CpuBindingTest, BadListsNameTheFlag) {
  const auto error = [](const std::string& text, int threads = 0) {
    return ErrorOf([&] { ParseCpuBind(text, threads, 2); });
  };
  EXPECT_THAT(error("0-3"),
              HasSubstr("--cpu-bind 0-3: lists CPUs of 1 ranks, but this host has 2 ranks"));
  EXPECT_THAT(error("0|1|2"), HasSubstr("of 3 ranks"));
  EXPECT_THAT(error("0-3|3-4"), HasSubstr("CPU 3 is listed for two ranks"));
  EXPECT_THAT(error("0-3|"), HasSubstr("--cpu-bind: '' is not a list of CPUs"));
  EXPECT_THAT(error("cores"), HasSubstr("'cores' is not a list of CPUs"));
  EXPECT_THAT(error("0-3|4", 2), HasSubstr("'4' has 1 CPUs but --cpu-threads-per-rank needs 2"));
}

TEST_F(CpuBindingTest, SglangsVariableIsTheDefault) {
  ASSERT_EQ(setenv("SGLANG_CPU_OMP_THREADS_BIND", "0-1|2-3", 1), 0);
  EXPECT_EQ(CpuBindOfEnvironment(), "0-1|2-3");
  ASSERT_EQ(setenv("SGLANG_CPU_OMP_THREADS_BIND", "all", 1), 0);
  EXPECT_EQ(CpuBindOfEnvironment(), "auto");
  ASSERT_EQ(unsetenv("SGLANG_CPU_OMP_THREADS_BIND"), 0);
  for (const auto& [value, bind] : {std::pair{"1", "auto"}, {"true", "auto"}, {"0", "none"}}) {
    ASSERT_EQ(setenv("SGLANG_SET_CPU_AFFINITY", value, 1), 0);
    EXPECT_EQ(CpuBindOfEnvironment(), bind) << value;
  }
  ASSERT_EQ(setenv("SGLANG_SET_CPU_AFFINITY", "maybe", 1), 0);
  EXPECT_THROW(CpuBindOfEnvironment(), Error);
  ASSERT_EQ(unsetenv("SGLANG_SET_CPU_AFFINITY"), 0);
  EXPECT_EQ(CpuBindOfEnvironment(), "auto");
}

TEST_F(CpuBindingTest, PlacesAreAmongRanksThatHaveTheSameCpus) {
  const std::vector<uint64_t> keys = {7, 3, 7, 7, 3};
  const PlaceAmongEqual place = FindPlace(keys, 3);
  EXPECT_EQ(place.index, 2);
  EXPECT_EQ(place.count, 3);
  EXPECT_EQ(FindPlace(keys, 1).index, 0);
}

// Ranks as threads of this process, on its real CPUs, which other programs may have reserved.
TEST_F(CpuBindingTest, NoTwoRanksOfAnEngineHaveACpuInCommon) {
  constexpr int kRanks = 2;
  EngineConfig config;
  config.mesh = {.tp = kRanks};
  const EnginePlan plan{.ranks_of_host = kRanks};
  std::vector<CpuBinding> bindings(kRanks);
  RunRankThreads(kRanks, RankComm::BytesPerRank(config.mesh),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   const auto comm = RankComm::Create(std::move(arena), config.mesh, rank);
                   bindings[rank] = BindRank(config, plan, *comm->tp);
                   comm->tp->Barrier("bound");
                 });
  const CpuList allowed = AllowedCpus();
  std::multiset<int> taken;
  for (const CpuBinding& binding : bindings) {
    EXPECT_GE(binding.threads, 1);
    taken.insert(binding.cpus.begin(), binding.cpus.end());
  }
  for (const int cpu : taken) {
    EXPECT_EQ(taken.count(cpu), 1u);
    EXPECT_THAT(allowed, ::testing::Contains(cpu));
  }
}

TEST_F(CpuBindingTest, AListOutsideTheProcesssOwnCpusIsRefused) {
  EngineConfig config;
  config.cpu_bind = "8191";
  config.mesh = {.tp = 1};
  EXPECT_THAT(ErrorOf([&] {
                RunRankThreads(1, RankComm::BytesPerRank(config.mesh),
                               [&](int rank, std::shared_ptr<SharedArena> arena) {
                                 const auto comm =
                                     RankComm::Create(std::move(arena), config.mesh, rank);
                                 BindRank(config, {}, *comm->tp);
                               });
              }),
              HasSubstr("--cpu-bind: CPU 8191 is outside this process's CPU affinity mask"));
}

}  // namespace
}  // namespace switchyard
