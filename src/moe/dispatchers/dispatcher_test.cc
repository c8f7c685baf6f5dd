// Tests of dispatchers without other stages: the worked example, properties of dispatch and
// combine, batches in flight, and errors for a missing peer or buffer.
#include "moe/dispatchers/dispatcher.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string>

#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/backends.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/dispatchers/exchange_slots.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

MoeOptions DeepEp(const std::string& mode, int capacity = 8) {
  return {.a2a_backend = "deepep",
          .deepep_mode = mode,
          .max_dispatch_tokens_per_rank = capacity,
          .row_dtype = DType::kF32};
}
MoeShape Sizes(int64_t hidden, int experts, int top_k, int64_t max_tokens) {
  return {.hidden = hidden,
          .intermediate = 1,
          .num_experts = experts,
          .top_k = top_k,
          .max_tokens = max_tokens};
}
MoeOptions None() { return {.a2a_backend = "none"}; }

// One batch with given routing. The test runs the experts itself: an output is the row times
// `factor`.
struct TestBatch {
  TopK topk;
  std::vector<float> x, y, outputs;
  DispatchHandle handle;
  Dispatched dispatched;
  GroupedRows grouped;

  TestBatch(int k, int64_t hidden, const std::vector<int32_t>& ids, float first_value)
      : topk{.tokens = static_cast<int64_t>(ids.size()) / k, .k = k, .ids = ids} {
    topk.weights.assign(ids.size(), 1.0f);
    x.resize(topk.tokens * hidden);
    for (size_t i = 0; i < x.size(); ++i) x[i] = first_value + static_cast<float>(i);
    y.assign(x.size(), NAN);
  }
  void BeginDispatch(CpuMoeBackend& moe, bool decode = false) {
    moe.dispatcher().BeginDispatch(x.data(), topk, decode, &handle);
  }
  void EndDispatch(CpuMoeBackend& moe) {
    dispatched = moe.dispatcher().EndDispatch(&handle);
    moe.permute(dispatched.layout).pre(moe.permute_context(), dispatched, &grouped);
  }
  void BeginCombine(CpuMoeBackend& moe, float factor = 1.0f) {
    const int64_t hidden = moe.shape().hidden;
    outputs.resize(grouped.num_rows * hidden);
    for (int64_t r = 0; r < grouped.num_rows; ++r) {
      const int64_t from = grouped.row_ids ? grouped.row_ids[r] : r;
      for (int64_t i = 0; i < hidden; ++i)
        outputs[r * hidden + i] = factor * grouped.x[from * grouped.ldx + i];
    }
    moe.dispatcher().BeginCombine(moe.permute(dispatched.layout).post(grouped, outputs.data()),
                                  &handle);
  }
  void EndCombine(CpuMoeBackend& moe) { moe.dispatcher().EndCombine(&handle, y.data()); }
  void RunAll(CpuMoeBackend& moe, bool decode = false) {
    BeginDispatch(moe, decode);
    EndDispatch(moe);
    BeginCombine(moe);
    EndCombine(moe);
  }
};

using RankBody = std::function<void(CpuMoeBackend&, int rank)>;
void RunRanks(const MoeOptions& options, const MoeShape& shape, int ranks, const RankBody& body,
              std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  RunMoeRanks(options, shape, {ranks, ranks},
              [&](RankComm& comm, ThreadPool& pool) {
                body(*MakeCpuMoe(options, shape, comm, pool), comm.mesh.rank());
              },
              {timeout});
}

// The example in dispatcher.h. A row is one number, the token index.
const std::vector<std::vector<int32_t>> kWorkedIds = {{0, 3, 2, 3}, {1, -1, 3, 0}};

TEST(DispatcherTest, WorkedExampleInNormalMode) {
  RunRanks(DeepEp("normal"), Sizes(1, 4, 2, 4), 2, [](CpuMoeBackend& moe, int rank) {
    TestBatch b(2, 1, kWorkedIds[rank], 2.0f * rank);
    b.BeginDispatch(moe);
    b.EndDispatch(moe);
    const std::span received(b.grouped.x, b.dispatched.num_rows);
    const std::span row_ids(b.grouped.row_ids, b.grouped.num_rows);
    const std::span position(b.grouped.position, 2 * b.dispatched.num_rows);
    if (rank == 0) {
      EXPECT_THAT(received, ElementsAre(0, 2, 3));
      EXPECT_THAT(b.grouped.offsets, ElementsAre(0, 2, 3));
      EXPECT_THAT(row_ids, ElementsAre(0, 2, 1));
      EXPECT_THAT(position, ElementsAre(0, -1, 2, -1, -1, 1));
    } else {
      EXPECT_THAT(received, ElementsAre(0, 1, 3));
      EXPECT_THAT(b.grouped.offsets, ElementsAre(0, 1, 4));
      EXPECT_THAT(row_ids, ElementsAre(1, 0, 1, 2));
      EXPECT_THAT(position, ElementsAre(-1, 1, 0, 2, 3, -1));
    }
    b.BeginCombine(moe);
    b.EndCombine(moe);
    EXPECT_EQ(b.y, rank == 0 ? std::vector<float>({0, 2}) : std::vector<float>({2, 6}));
  });
}

TEST(DispatcherTest, WorkedExampleInLowLatencyMode) {
  RunRanks(DeepEp("low_latency", 2), Sizes(1, 4, 2, 4), 2, [](CpuMoeBackend& moe, int rank) {
    TestBatch b(2, 1, kWorkedIds[rank], 2.0f * rank);
    b.BeginDispatch(moe);
    b.EndDispatch(moe);
    EXPECT_EQ(b.dispatched.capacity, 2);
    const std::span counts(b.dispatched.counts, 4);
    std::vector<float> grouped;
    for (int64_t r = 0; r < b.grouped.num_rows; ++r)
      grouped.push_back(b.grouped.x[b.grouped.row_ids[r]]);
    if (rank == 0) {
      EXPECT_THAT(counts, ElementsAre(1, 0, 1, 1));
      EXPECT_THAT(b.grouped.offsets, ElementsAre(0, 2, 3));
      EXPECT_THAT(grouped, ElementsAre(0, 3, 2));
    } else {
      EXPECT_THAT(counts, ElementsAre(1, 2, 0, 1));
      EXPECT_THAT(b.grouped.offsets, ElementsAre(0, 1, 4));
      EXPECT_THAT(grouped, ElementsAre(1, 0, 1, 3));
    }
    b.BeginCombine(moe);
    b.EndCombine(moe);
    EXPECT_EQ(b.y, rank == 0 ? std::vector<float>({0, 2}) : std::vector<float>({2, 6}));
  });
}

// Experts return their row and all weights are 1. So a token's sum is its row times its number of
// ids.
TEST(DispatcherTest, DispatchThenCombineCountsCopies) {
  const int64_t hidden = 32;
  const int experts = 9, k = 3;
  for (const auto& [options, ranks] : {std::pair{None(), 1},
                                       {DeepEp("normal"), 1},
                                       {DeepEp("normal"), 4},
                                       {DeepEp("low_latency"), 4},
                                       {DeepEp("auto"), 3}}) {
    SCOPED_TRACE(fmt::format("{} {} on {}", options.a2a_backend, options.deepep_mode, ranks));
    RunRanks(
        options, Sizes(hidden, experts, k, 8 * ranks), ranks, [&](CpuMoeBackend& moe, int rank) {
          kernels::Random random(rank);
          for (int round = 0; round < 6; ++round) {
            // The number of tokens differs between ranks. In some rounds, some rank has no tokens.
            const int64_t tokens = (3 * rank + 5 * round) % 9;
            std::vector<int32_t> ids;
            std::vector<float> copies(tokens, 0.0f);
            for (int64_t t = 0; t < tokens; ++t) {
              const auto first = static_cast<int32_t>(random.Below(experts));
              for (int j = 0; j < k; ++j) {
                const bool none = round == 3 || random.Below(4) == 0;
                ids.push_back(none ? -1 : (first + j) % experts);
                copies[t] += none ? 0.0f : 1.0f;
              }
            }
            TestBatch b(k, hidden, ids, 1.0f);
            b.RunAll(moe, /*decode=*/round % 2 == 1);
            for (size_t i = 0; i < b.y.size(); ++i)
              ASSERT_EQ(b.y[i], copies[i / hidden] * b.x[i]) << "round " << round << " at " << i;
          }
        });
  }
}

// Random expert ids, some −1.
std::vector<int32_t> RandomIds(kernels::Random& random, int64_t tokens, int experts, int k) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    const std::vector<int32_t> order = random.Shuffled(experts);
    for (int j = 0; j < k; ++j) ids.push_back(random.Below(5) == 0 ? -1 : order[j]);
  }
  return ids;
}

// A second dispatch of `x` with the routing of the first one gives the same rows in the same order
// as a fresh dispatch.
TEST(DispatcherTest, DispatchAgainIsTheSameWithoutRouting) {
  const int64_t hidden = 256;
  for (const std::string mode : {"normal", "low_latency", "auto"}) {
    for (const bool fp8 : {false, true}) {
      SCOPED_TRACE(fmt::format("{} fp8 {}", mode, fp8));
      MoeOptions options = DeepEp(mode, 16);
      options.row_dtype = DType::kBF16;
      options.dispatcher_output_dtype = fp8 ? "fp8" : "bf16";
      RunRanks(options, Sizes(hidden, 10, 3, 64), 4, [&](CpuMoeBackend& moe, int rank) {
        kernels::Random random(rank);
        const std::vector<int32_t> ids = RandomIds(random, 5 + 2 * rank, 10, 3);
        TestBatch first(3, hidden, ids, 1.0f), fresh(3, hidden, ids, 7.0f);
        TestBatch in_flight(3, hidden, {0, 4, 9}, 3.0f);
        first.RunAll(moe, /*decode=*/true);
        in_flight.BeginDispatch(moe);  // uses the buffer slot that the first batch has released
        fresh.RunAll(moe, /*decode=*/true);
        first.x = fresh.x;
        moe.dispatcher().BeginDispatchAgain(first.x.data(), true, &first.handle);
        // The receiver must reuse the routing of the first dispatch: the tokens of in_flight have
        // other destinations.
        first.EndDispatch(moe);
        first.BeginCombine(moe);
        first.EndCombine(moe);
        EXPECT_TRUE(kernels::SameBits(first.y, fresh.y));
        in_flight.EndDispatch(moe);
        in_flight.BeginCombine(moe);
        in_flight.EndCombine(moe);
      });
    }
  }
}

TEST(DispatcherTest, DispatchAgainExchangesNoCounts) {
  for (const std::string mode : {"normal", "low_latency"}) {
    const MoeOptions options = DeepEp(mode, 8);
    const MoeShape shape = Sizes(64, 4, 2, 16);
    RunMoeRanks(options, shape, {2, 2}, [&](RankComm& comm, ThreadPool& pool) {
      const size_t begin = comm.memory->Allocate(0);
      const auto moe = MakeCpuMoe(options, shape, comm, pool);
      TestBatch batch(2, 64, {0, 2, 3, 1, 1, -1}, 1.0f);
      batch.RunAll(*moe);
      const std::vector<float> want = batch.y;
      comm.tp->Barrier("test");
      // Overwrites the received counts, which are at the beginning of a slot (DispatchRows). The
      // dispatch must not read them again.
      auto* counts = reinterpret_cast<int32_t*>(comm.memory->Local(begin));
      std::fill_n(counts, BufferPlan::kLine / sizeof(int32_t), -77);
      comm.tp->Barrier("test");
      moe->dispatcher().BeginDispatchAgain(batch.x.data(), false, &batch.handle);
      batch.EndDispatch(*moe);
      batch.BeginCombine(*moe);
      batch.EndCombine(*moe);
      EXPECT_EQ(batch.y, want);
      comm.tp->Barrier("test");
      EXPECT_EQ(counts[0], -77) << "written again";
    });
  }
}

// The receive hook: the rank polls while it does other work, here until all rows have arrived.
TEST(DispatcherTest, ArrivedIsTrueIfEndDispatchWouldNotWait) {
  for (const std::string mode : {"normal", "low_latency", "auto"}) {
    RunRanks(DeepEp(mode), Sizes(16, 4, 2, 12), 2, [&](CpuMoeBackend& moe, int rank) {
      RankComm& comm = moe.comm();
      TestBatch b(2, 16, {0, 3, 1, 2}, 10.0f * rank);
      if (rank == 1) comm.tp->Barrier("test");  // until rank 0 has begun and polled
      b.BeginDispatch(moe, true);
      if (rank == 0) {
        EXPECT_FALSE(moe.dispatcher().Arrived(&b.handle)) << mode;
        comm.tp->Barrier("test");
      }
      int64_t other_work = 0;
      while (!moe.dispatcher().Arrived(&b.handle)) ++other_work;
      b.EndDispatch(moe);
      b.BeginCombine(moe);
      b.EndCombine(moe);
      for (size_t i = 0; i < b.y.size(); ++i) ASSERT_EQ(b.y[i], 2.0f * b.x[i]);
    });
  }
}

TEST(DispatcherTest, AutoSendsDecodeByLowLatencyAndTheRestByNormal) {
  RunRanks(DeepEp("auto", 4), Sizes(16, 4, 2, 64), 2, [&](CpuMoeBackend& moe, int) {
    EXPECT_TRUE(moe.splits_mixed_batches());
    EXPECT_EQ(moe.dispatcher().MaxTokens(true), 4);
    EXPECT_EQ(moe.dispatcher().MaxTokens(false), 32);
    for (const bool decode : {true, false}) {
      TestBatch b(2, 16, {0, 3, 1, 2}, 1.0f);
      b.BeginDispatch(moe, decode);
      b.EndDispatch(moe);
      EXPECT_EQ(b.dispatched.layout,
                decode ? DispatchLayout::kLowLatency : DispatchLayout::kNormal);
      b.BeginCombine(moe);
      b.EndCombine(moe);
    }
  });
}

// A row for several experts of one rank is stored once. If that rank is on the same host, it reads
// the row in the source's arena, so there is only one copy of a token's row.
TEST(DispatcherTest, RowsAreReadInPlaceAtTheirSource) {
  for (const std::string mode : {"normal", "low_latency"}) {
    RunRanks(DeepEp(mode), Sizes(16, 4, 2, 12), 2, [&](CpuMoeBackend& moe, int rank) {
      TestBatch b(2, 16, {2, 3, 0, 1, 0, 2}, 100.0f * rank);
      b.BeginDispatch(moe);
      b.EndDispatch(moe);
      EXPECT_EQ(b.dispatched.num_rows, 4);  // two from each source
      const std::span at(b.dispatched.row_places, 4);
      // Rows of 64 bytes; rank 0 needs tokens 1 and 2 of either source, rank 1 tokens 0 and 2.
      const auto distance = [&](int a, int b) { return at[b] - at[a]; };
      EXPECT_EQ(distance(0, 1), rank == 0 ? 64 : 2 * 64);
      EXPECT_EQ(distance(2, 3), rank == 0 ? 64 : 2 * 64);
      const std::byte* own = moe.comm().memory->Local(0);
      for (int n = 0; n < 4; ++n) {
        const bool mine = at[n] >= own && at[n] < own + moe.comm().memory->bytes_used();
        EXPECT_EQ(mine, n / 2 == rank) << "row " << n;
      }
      EXPECT_EQ(b.grouped.num_rows, 6);
      b.BeginCombine(moe);
      b.EndCombine(moe);
    });
  }
}

// The runner has tiles of 4 rows. Padding rows are computed and their outputs are ignored.
TEST(DispatcherTest, ExpertsBeginAtMultiplesOfTheAlignment) {
  for (const std::string mode : {"normal", "low_latency"}) {
    RunRanks(DeepEp(mode), Sizes(16, 6, 2, 12), 2, [&](CpuMoeBackend& moe, int rank) {
      TestBatch b(2, 16, {2, 3, 0, 1, 0, 2, 0, 4, 5, 0, 0, 3}, 100.0f * rank);
      b.BeginDispatch(moe);
      b.dispatched = moe.dispatcher().EndDispatch(&b.handle);
      PermuteContext context = moe.permute_context();
      EXPECT_EQ(context.expert_alignment, 1);
      context.expert_alignment = 4;
      moe.permute(b.dispatched.layout).pre(context, b.dispatched, &b.grouped);
      if (rank == 0)
        EXPECT_THAT(b.grouped.offsets, ElementsAre(0, 12, 16, 20));  // 10, 2 and 4 rows
      else
        EXPECT_THAT(b.grouped.offsets, ElementsAre(0, 4, 8, 12));
      EXPECT_EQ(b.grouped.num_rows, b.grouped.offsets.back());
      b.BeginCombine(moe);
      b.EndCombine(moe);
      for (size_t i = 0; i < b.y.size(); ++i) ASSERT_EQ(b.y[i], 2.0f * b.x[i]);
    });
  }
}

TEST(DispatcherTest, TwoBatchesInFlightEndInEitherOrder) {
  const std::vector<int32_t> ids_a = {0, 3, 1, 2, 3, 0}, ids_b = {2, 1, -1, 3};
  for (const std::string mode : {"normal", "low_latency", "auto"}) {
    for (const bool a_first : {true, false}) {
      SCOPED_TRACE(fmt::format("{} a first {}", mode, a_first));
      RunRanks(DeepEp(mode), Sizes(16, 4, 2, 12), 2, [&](CpuMoeBackend& moe, int rank) {
        for (int round = 0; round < 3; ++round) {
          TestBatch a(2, 16, ids_a, 100.0f * rank), b(2, 16, ids_b, 1000.0f + rank);
          a.BeginDispatch(moe, false);
          b.BeginDispatch(moe, true);
          for (TestBatch* batch : a_first ? std::array{&a, &b} : std::array{&b, &a}) {
            batch->EndDispatch(moe);
            batch->BeginCombine(moe, batch == &a ? 2.0f : 3.0f);
          }
          for (TestBatch* batch : a_first ? std::array{&a, &b} : std::array{&b, &a})
            batch->EndCombine(moe);
          for (size_t i = 0; i < a.y.size(); ++i) ASSERT_EQ(a.y[i], 4.0f * a.x[i]);
          for (size_t i = 0; i < b.y.size(); ++i)
            ASSERT_EQ(b.y[i], (i < 16 ? 6.0f : 3.0f) * b.x[i]);
        }
      });
    }
  }
}

TEST(DispatcherTest, MoreBatchesInFlightThanBuffersIsRefused) {
  for (const std::string mode : {"normal", "low_latency"}) {
    RunRanks(DeepEp(mode), Sizes(16, 4, 2, 12), 1, [&](CpuMoeBackend& moe, int) {
      TestBatch a(2, 16, {0, 1}, 1.0f), b(2, 16, {0, 1}, 1.0f), c(2, 16, {0, 1}, 1.0f);
      a.BeginDispatch(moe);
      b.BeginDispatch(moe);
      EXPECT_THAT(ErrorOf([&] { c.BeginDispatch(moe); }, ErrorKind::kResource),
                  HasSubstr("2 batches are in flight"));
    });
  }
}

TEST(DispatcherTest, LowLatencyRefusesMoreTokensThanItsCapacity) {
  RunRanks(DeepEp("low_latency", 2), Sizes(16, 4, 1, 12), 1, [&](CpuMoeBackend& moe, int) {
    TestBatch b(1, 16, {0, 1, 2}, 1.0f);
    EXPECT_THAT(ErrorOf([&] { b.BeginDispatch(moe); }, ErrorKind::kResource),
                HasSubstr("3 tokens on one rank exceed the capacity of 2"));
    TestBatch fits(1, 16, {0, 1}, 1.0f);
    fits.RunAll(moe);
    EXPECT_EQ(fits.y, fits.x);
  });
}

// Rank 1 exits after `steps` calls; rank 0's error must name the peer and the stage.
std::string TimeoutOf(const std::string& mode, int steps) {
  const auto body = [&](CpuMoeBackend& moe, int rank) {
    TestBatch b(1, 16, {0, 2}, 1.0f);
    if (rank == 0) return b.RunAll(moe);
    if (steps > 0) b.BeginDispatch(moe);
  };
  return ErrorOf(
      [&] { RunRanks(DeepEp(mode), Sizes(16, 4, 1, 12), 2, body, std::chrono::milliseconds(300)); },
      ErrorKind::kTimeout);
}

TEST(DispatcherTest, TimeoutNamesPeerAndStage) {
  EXPECT_THAT(TimeoutOf("normal", 0), HasSubstr("for rank 1 in deepep dispatch rows"));
  EXPECT_THAT(TimeoutOf("low_latency", 0), HasSubstr("for rank 1 in deepep dispatch rows"));
  EXPECT_THAT(TimeoutOf("normal", 1), HasSubstr("for rank 1 in deepep combine rows"));
  EXPECT_THAT(TimeoutOf("low_latency", 1), HasSubstr("for rank 1 in deepep combine rows"));
}

}  // namespace
}  // namespace switchyard
