#include "core/cpus.h"

#include <gmock/gmock.h>

#include <barrier>
#include <fstream>
#include <thread>

#include "core/parallel.h"
#include "core/temporary_directory.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

// A fake /sys with `nodes` NUMA nodes of `cores` cores with two hardware threads each. CPU numbers
// are as Linux usually assigns them: first threads of all cores, node by node, then the second
// threads.
class FakeMachine {
 public:
  FakeMachine(int nodes, int cores) {
    for (int cpu = 0; cpu < 2 * nodes * cores; ++cpu) {
      const int core = cpu % (nodes * cores);
      const fs::path directory = root() / "sys/devices/system/cpu" / fmt::format("cpu{}", cpu);
      fs::create_directories(directory / "topology");
      fs::create_directories(directory / fmt::format("node{}", core / cores));
      std::ofstream(directory / "topology/physical_package_id") << core / cores;
      std::ofstream(directory / "topology/core_id") << core % cores;
    }
  }
  const fs::path& root() const { return temporary_.path(); }

 private:
  const TemporaryDirectory temporary_;
};

CpuList UpTo(int count) {
  CpuList cpus;
  for (int cpu = 0; cpu < count; ++cpu) cpus.push_back(cpu);
  return cpus;
}

TEST(CpusTest, ListsAreReadAndWritten) {
  EXPECT_THAT(ParseCpuList("x", "8,0-3"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(ParseCpuList("x", "5"), ElementsAre(5));
  EXPECT_EQ(FormatCpuList({8, 0, 1, 3, 2, 11, 10}), "0-3,8,10-11");
  EXPECT_EQ(FormatCpuList({}), "");
}

TEST(CpusTest, BadListsAreNamed) {
  for (const char* bad : {"", "a", "1,", "1-", "-1", "1;2", "0-99999", "1 2"}) {
    EXPECT_THAT(ErrorOf([&] { ParseCpuList("--cpu-bind", bad); }),
                HasSubstr(fmt::format("--cpu-bind: '{}' is not a list of CPUs", bad)));
  }
  EXPECT_THAT(ErrorOf([] { ParseCpuList("x", "3-1"); }), HasSubstr("3-1 in '3-1' is descending"));
  EXPECT_THAT(ErrorOf([] { ParseCpuList("x", "0-2,1"); }),
              HasSubstr("CPU 1 appears twice in '0-2,1'"));
}

TEST(CpusTest, RanksGetWholeCoresOfOneNode) {
  const FakeMachine machine(/*nodes=*/2, /*cores=*/4);
  const auto share = [&](const CpuList& cpus, int index, int count) {
    return PartitionCpus(cpus, index, count, machine.root());
  };
  EXPECT_THAT(share(UpTo(16), 0, 2), ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_THAT(share(UpTo(16), 1, 2), ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
  EXPECT_THAT(share(UpTo(16), 3, 4), ElementsAre(6, 7, 14, 15));
  EXPECT_THAT(share({2, 3, 4, 5}, 1, 2), ElementsAre(4, 5)) << "fewer CPUs are allowed";
  EXPECT_THAT(share({0, 8}, 1, 2), ElementsAre(8)) << "hardware threads of one core";
  EXPECT_THAT(share({0, 8}, 0, 3), IsEmpty());
}

TEST(CpusTest, EachCpuIsOneRanks) {
  const FakeMachine machine(2, 4);
  for (const int count : {1, 2, 3, 5, 8, 11, 16}) {
    CpuList all;
    for (int index = 0; index < count; ++index) {
      const CpuList share = PartitionCpus(UpTo(16), index, count, machine.root());
      EXPECT_FALSE(share.empty()) << count;
      all.insert(all.end(), share.begin(), share.end());
    }
    EXPECT_THAT(all, ::testing::UnorderedElementsAreArray(UpTo(16))) << count;
  }
}

TEST(CpusTest, WithoutSysNumbersPart) {
  EXPECT_THAT(PartitionCpus(UpTo(4), 1, 2, "/nowhere"), ElementsAre(2, 3));
}

TEST(CpusTest, EachCpuIsAssignedOnce) {
  const FakeMachine machine(1, 2);
  std::optional<CpuReservation> first = CpuReservation::Take(2, UpTo(4), machine.root());
  ASSERT_TRUE(first);
  EXPECT_THAT(first->cpus(), ElementsAre(0, 1));
  EXPECT_FALSE(CpuReservation::Take(3, UpTo(4), machine.root()));
  const auto second = CpuReservation::Take(2, UpTo(4), machine.root());
  ASSERT_TRUE(second);
  EXPECT_THAT(second->cpus(), ElementsAre(2, 3));
  CpuReservation moved = std::move(*first);
  first.reset();
  EXPECT_FALSE(CpuReservation::Take(1, {0, 1}, machine.root()));
  { const CpuReservation gone = std::move(moved); }
  EXPECT_TRUE(CpuReservation::Take(2, {0, 1}, machine.root()));
  EXPECT_FALSE(CpuReservation::Take(1, {77}, machine.root())) << "no such CPU";
}

TEST(CpusTest, ThreadsRunOnTheirCpus) {
  const CpuList all = AllowedCpus();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(AllowedCpuCount(), std::ssize(all));
  std::thread([&] {
    const int last = all.back();
    ASSERT_TRUE(SetThreadAffinity({&last, 1}));
    EXPECT_THAT(AllowedCpus(), ElementsAre(all.back()));
    EXPECT_EQ(AllowedCpuCount(), 1);
    std::thread([&] { EXPECT_THAT(AllowedCpus(), ElementsAre(all.back())); }).join();
  }).join();
  EXPECT_EQ(AllowedCpus(), all);
}

TEST(CpusTest, WorkersOfAPoolHaveACpuEachAndItsCallerAll) {
  const CpuList cpus = AllowedCpus();
  const auto threads = static_cast<int>(cpus.size());
  std::vector<CpuList> masks(threads);
  std::thread([&] {  // a separate thread, because the pool changes the caller's affinity mask
    ThreadPool pool(threads, cpus);
    std::barrier all(threads);
    pool.Run(threads, [&](int64_t i) {
      all.arrive_and_wait();  // so that each thread runs one index
      masks[i] = AllowedCpus();
    });
    EXPECT_EQ(AllowedCpus(), cpus);
  })
      .join();
  std::vector<CpuList> expected = {cpus};
  for (int i = 1; i < threads; ++i) expected.push_back({cpus[i]});
  EXPECT_THAT(masks, ::testing::UnorderedElementsAreArray(expected));
}

}  // namespace
}  // namespace switchyard
