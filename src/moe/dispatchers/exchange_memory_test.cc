// Exchange memory: the formula of docs/moe.md, the allocation, and the number of pages that a run
// touches.
#include "moe/dispatchers/exchange_memory.h"

#include <sys/stat.h>

#include <string>

#include "core/check.h"
#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/backends.h"
#include "moe/cpu/cpu_backend.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

MoeOptions DeepEp(const std::string& mode, int capacity, int64_t per_round, int rounds = 0) {
  return {.a2a_backend = "deepep",
          .deepep_mode = mode,
          .max_dispatch_tokens_per_rank = capacity,
          .long_seq_per_round_tokens = per_round,
          .long_seq_rounds = rounds,
          .row_dtype = DType::kBF16};
}

size_t Lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Expected bytes. There are P ranks, C tokens per round and T tokens per combine, k slots per
// token, E experts per rank, and `row` = H · 2 bytes per row.
size_t NormalBytes(size_t p, size_t c, size_t t, size_t k, size_t row) {
  return 2 * (Lines(4 * p) + Lines(p * c * row) + Lines(4 * p * c * (1 + k)) + Lines(t * k * row) +
              2 * 64 * p);
}
size_t LowLatencyBytes(size_t p, size_t c, size_t k, size_t e, size_t row) {
  return 2 * (Lines(4 * p) + Lines(p * c * row) + Lines(4 * p * e) + Lines(8 * e * p * c) +
              Lines(c * k * row) + 2 * 64 * p);
}

// --moe-combine-rows rank: weights are sent with the rows, and one row per rank returns.
size_t NormalBytesByRank(size_t p, size_t c, size_t t, size_t k, size_t row) {
  return 2 * (Lines(4 * p) + Lines(p * c * row) + Lines(4 * p * c * k) +
              Lines(4 * p * c * (1 + k)) + Lines(p * t * row) + 2 * 64 * p);
}

const MoeShape kShape = {
    .hidden = 100, .intermediate = 8, .num_experts = 10, .top_k = 3, .max_tokens = 50};

MoeOptions InRounds(MoeOptions options) {
  options.combine_long_seq = true;
  return options;
}

size_t MemoryOf(const MoeOptions& options, int ranks) {
  return MoeSymmetricBytes(options, kShape, {ranks, ranks});
}

TEST(ExchangeMemoryTest, IsTheFormula) {
  const size_t k = 3, row = 200;
  for (const int ranks : {1, 2, 4}) {
    const size_t p = ranks, most = (50 + p - 1) / p, experts = (10 + p - 1) / p;
    EXPECT_EQ(MemoryOf(DeepEp("normal", 8, 8192), ranks), NormalBytes(p, most, most, k, row));
    EXPECT_EQ(MemoryOf(DeepEp("normal", 8, 5), ranks), NormalBytes(p, 5, most, k, row));
    EXPECT_EQ(MemoryOf(InRounds(DeepEp("normal", 8, 5)), ranks), NormalBytes(p, 5, 5, k, row));
    MoeOptions by_rank = DeepEp("normal", 8, 5);
    by_rank.combine_rows = "rank";
    EXPECT_EQ(MemoryOf(by_rank, ranks), NormalBytesByRank(p, 5, most, k, row));
    EXPECT_EQ(MemoryOf(InRounds(by_rank), ranks), NormalBytesByRank(p, 5, 5, k, row));
    EXPECT_EQ(MemoryOf(DeepEp("low_latency", 8, 5), ranks), LowLatencyBytes(p, 8, k, experts, row));
    EXPECT_EQ(MemoryOf(DeepEp("auto", 8, 5), ranks),
              NormalBytes(p, 5, most, k, row) + LowLatencyBytes(p, 8, k, experts, row));
  }
}

// There is one flag for each part of the outputs, instead of one for all outputs. With 10 experts
// on 4 ranks, a rank has at most three experts, so there are at most three parts.
TEST(ExchangeMemoryTest, HasAFlagForEachPartOfTheOutputs) {
  for (const char* mode : {"normal", "low_latency"}) {
    for (const int ranks : {1, 2, 4}) {
      const size_t p = ranks, parts = ranks == 4 ? 3 : 4;
      MoeOptions options = DeepEp(mode, 8, 5);
      const size_t whole = MemoryOf(options, ranks);
      options.single_batch_overlap = true;
      EXPECT_EQ(MemoryOf(options, ranks), whole + 2 * 64 * p * (parts - 1)) << mode;
    }
  }
}

TEST(ExchangeMemoryTest, IsDescribedByBuffer) {
  const MoeOptions options = DeepEp("auto", 8, 5);  // a pass has 25 tokens per rank
  const std::string line = DescribeExchangeMemory(options, kShape, {2, 2});
  EXPECT_THAT(line,
              AllOf(HasSubstr("exchange memory of each rank "),
                    HasSubstr("deepep normal 2 × (counts 64 B, rows 2.0 KiB, outputs 14.7 KiB, "
                              "tags 192 B, flags 256 B)"),
                    HasSubstr("deepep low_latency 2 × (")));
  EXPECT_THAT(DescribeExchangeMemory(InRounds(options), kShape, {2, 2}),
              HasSubstr("outputs 2.9 KiB, tags"));
  EXPECT_THAT(DescribeExchangeMemory({.a2a_backend = "none"}, kShape, {2, 2}), HasSubstr("none"));
}

TEST(ExchangeMemoryTest, MoreRoundsThanAllowedAreRefusedAtStart) {
  // 25 tokens per rank on 2 ranks, 10 per round.
  EXPECT_GT(MemoryOf(DeepEp("normal", 8, 10, /*rounds=*/3), 2), 0u);
  for (const std::string mode : {"normal", "auto"}) {
    try {
      MemoryOf(DeepEp(mode, 8, 10, /*rounds=*/2), 2);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("--deepep-normal-long-seq-round 2"),
                                      HasSubstr("--deepep-normal-long-seq-per-round-tokens 10"),
                                      HasSubstr("25 tokens"), HasSubstr("3 rounds")));
    }
  }
  EXPECT_GT(MemoryOf(DeepEp("low_latency", 8, 10, /*rounds=*/2), 2), 0u);
}

size_t BytesTouched(const SharedArena& arena) {
  struct stat status = {};
  CHECK_EQ(fstat(arena.fd(), &status), 0);
  return static_cast<size_t>(status.st_blocks) * 512;
}

// Repeatedly, two full batches are in flight, and all tokens are sent to every rank.
TEST(ExchangeMemoryTest, PagesTouchedStayUnderIt) {
  const int ranks = 2, tokens = 64;
  const MoeShape shape = {.hidden = 1024,
                          .intermediate = 8,
                          .num_experts = 4,
                          .top_k = 4,
                          .max_tokens = ranks * tokens};
  for (const std::string mode : {"normal", "low_latency"}) {
    const MoeOptions options = DeepEp(mode, tokens, tokens);
    const MeshShape mesh = {ranks, ranks};
    const size_t bytes = MoeSymmetricBytes(options, shape, mesh);
    size_t touched = 0;
    RunRankThreads(ranks, RankComm::BytesPerRank(mesh) + bytes, [&](int rank, const auto& arena) {
      const auto comm = RankComm::Create(arena, mesh, rank);
      ThreadPool pool(1);
      const auto moe = MakeCpuMoe(options, shape, *comm, pool);
      comm->ep->Barrier("test");
      const size_t before = BytesTouched(*arena);
      comm->ep->Barrier("test");
      TopK topk = {.tokens = tokens, .k = 4, .ids = {}, .weights = {}};
      for (int t = 0; t < tokens; ++t) topk.ids.insert(topk.ids.end(), {0, 1, 2, 3});
      topk.weights.assign(topk.ids.size(), 1.0f);
      std::vector<float> x(tokens * shape.hidden, 1.0f), y(x.size());
      struct {
        DispatchHandle handle;
        GroupedRows grouped;
        std::vector<float> outputs;
      } batches[2];
      for (int round = 0; round < 3; ++round) {
        for (auto& b : batches) moe->dispatcher().BeginDispatch(x.data(), topk, false, &b.handle);
        for (auto& b : batches) {
          const Dispatched in = moe->dispatcher().EndDispatch(&b.handle);
          moe->permute(in.layout).pre(moe->permute_context(), in, &b.grouped);
          b.outputs.assign(b.grouped.num_rows * shape.hidden, 1.0f);
          moe->dispatcher().BeginCombine(moe->permute(in.layout).post(b.grouped, b.outputs.data()),
                                         &b.handle);
        }
        for (auto& b : batches) moe->dispatcher().EndCombine(&b.handle, y.data());
      }
      comm->ep->Barrier("test");
      if (rank == 0) touched = BytesTouched(*arena) - before;
      comm->ep->Barrier("test");
    });
    const size_t page = 4096;
    EXPECT_LE(touched, ranks * (bytes + page)) << mode;
    // Rows are written once and read in place. So half of their buffer stays untouched: it is for
    // ranks of other hosts.
    EXPECT_GE(touched, ranks * bytes * 4 / 10) << mode;
  }
}

// SGLang's example: hidden 7168, top-8 and 4096 tokens per round.
const MoeShape kSglangShape = {
    .hidden = 7168, .intermediate = 8, .num_experts = 256, .top_k = 8, .max_tokens = 16384};

TEST(ExchangeMemoryTest, HcclBuffsizeBoundsARoundBySglangsFormula) {
  const MoeShape& shape = kSglangShape;
  const auto error = [&](MoeOptions options, const MoeShape& moe) {
    return ErrorOf([&] { MoeSymmetricBytes(options, moe, {1, 1}); });
  };
  MoeOptions options = DeepEp("normal", 8, 4096);
  options.hccl_buffer_mib = 1576;  // 2 · (106 + 4096 · 3 · 7168 · 8 / 2^20) + 20
  EXPECT_EQ(error(options, shape), "no error");
  --options.hccl_buffer_mib;
  EXPECT_THAT(error(options, shape),
              AllOf(HasSubstr("HCCL_BUFFSIZE=1575"), HasSubstr("4096 tokens per rank needs 1576"),
                    HasSubstr("DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS")));
  // A pass of one round needs the smaller buffer, unless combine in rounds is requested.
  MoeShape one_round = shape;
  one_round.max_tokens = 4096;
  options.hccl_buffer_mib = 1128;
  EXPECT_EQ(error(options, one_round), "no error");
  options.combine_long_seq = true;
  EXPECT_THAT(error(options, one_round), HasSubstr("needs 1576"));
  // The fixed-size exchange of decode has no rounds.
  options.deepep_mode = "low_latency";
  EXPECT_EQ(error(options, one_round), "no error");
}

TEST(ExchangeMemoryTest, HcclBuffsizeDecidesWhetherOneCombineCoversAPass) {
  const auto bytes = [](int mib, int64_t max_tokens) {
    MoeShape shape = kSglangShape;
    shape.max_tokens = max_tokens;
    MoeOptions options = DeepEp("normal", 8, 4096);
    options.hccl_buffer_mib = mib;
    return MoeSymmetricBytes(options, shape, {1, 1});
  };
  const size_t row = 2 * 7168;
  const auto expected = [&](size_t tokens) { return NormalBytes(1, 4096, tokens, 8, row); };
  EXPECT_EQ(bytes(0, 16384), expected(16384));
  EXPECT_EQ(bytes(3816, 16384), expected(16384));  // 2 · (106 + 16384 · 2 · 7168 · 8 / 2^20) + 20
  EXPECT_EQ(bytes(3815, 16384), expected(4096));
  EXPECT_EQ(bytes(1576, 16384), expected(4096));
  // For a pass that is slightly longer than a round, one combine needs a smaller buffer than
  // combines in rounds.
  EXPECT_EQ(bytes(1326, 5000), expected(5000));
  EXPECT_THAT(ErrorOf([&] { bytes(1325, 5000); }),
              AllOf(HasSubstr("HCCL_BUFFSIZE=1325"), HasSubstr("5000 tokens per rank needs 1326")));
}

// flashinfer and fused have a combine in each round.
TEST(ExchangeMemoryTest, OtherBackendsNeedTheBufferOfOneRound) {
  for (const std::string a2a : {"flashinfer", "fused"}) {
    MoeOptions options = DeepEp("normal", 8, 4096);
    options.a2a_backend = a2a;
    const size_t bytes = MoeSymmetricBytes(options, kSglangShape, {1, 1});
    EXPECT_EQ(MoeSymmetricBytes(InRounds(options), kSglangShape, {1, 1}), bytes);
    options.hccl_buffer_mib = 1575;
    EXPECT_THAT(ErrorOf([&] {
                  MoeSymmetricBytes(options, kSglangShape, {1, 1});
                }),
                HasSubstr("4096 tokens per rank needs 1576"));
  }
}

}  // namespace
}  // namespace switchyard
