// The CPU side of the exchange with a GPU. A thread plays the GPU: it writes to the arena with
// plain stores in the layout of ArenaOfDeepEpNormal, and does not wake the waiting rank.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>

#include "core/error.h"
#include "core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "moe/dispatchers/test_arena.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PlainSource {
 public:
  PlainSource(const ArenaCase& c, RankComm& comm)
      : c_(c), at_(c.Arena()), memory_(*comm.memory), base_(memory_.Allocate(at_.bytes)) {}

  // A batch in slot 0, as the kernels of ArenaExchange run it.
  std::vector<float> Run(const SomeTokens& some) {
    Dispatch(some);
    for (int r = 1; r < c_.ranks; ++r)
      while (Flag(0, at_.outputs_flag, r).load(std::memory_order_acquire) != round_)
        std::this_thread::yield();
    return Sum(some);
  }
  void Dispatch(const SomeTokens& some) {
    ++round_;
    const RowFormat format = c_.Exchange().row_format;
    const ExpertMap experts = c_.Experts();
    for (int64_t t = 0; t < some.topk.tokens; ++t)
      StoreRow(format, some.x.data() + t * c_.hidden, c_.hidden,
               At(0, at_.rows) + t * at_.row_bytes);
    for (int r = 1; r < c_.ranks; ++r) {
      int32_t count = 0;
      auto* tag = reinterpret_cast<int32_t*>(At(r, at_.tags));
      for (int64_t t = 0; t < some.topk.tokens; ++t) {
        const std::span ids(some.topk.ids.data() + t * c_.k, static_cast<size_t>(c_.k));
        if (std::ranges::none_of(ids, [&](int32_t id) { return experts.LocalIdOn(r, id) >= 0; }))
          continue;
        *tag++ = static_cast<int32_t>(t);
        for (const int32_t id : ids) *tag++ = experts.LocalIdOn(r, id);
        ++count;
      }
      std::memcpy(At(r, at_.counts), &count, sizeof count);
    }
    for (int r = 1; r < c_.ranks; ++r)
      for (const int stage : {at_.rows_flag, at_.outputs_flag})
        Flag(r, stage, 0).store(round_, std::memory_order_release);
  }

 private:
  std::byte* At(int rank, size_t offset) { return memory_.At(rank, base_ + offset); }
  std::atomic_ref<uint32_t> Flag(int rank, int stage, int source) {
    const size_t flag = static_cast<size_t>(stage) * c_.ranks + source;
    return std::atomic_ref(
        *reinterpret_cast<uint32_t*>(At(rank, at_.flags + flag * at_.flag_stride)));
  }
  // Own experts give their outputs here, the others through the arena.
  std::vector<float> Sum(const SomeTokens& some) {
    const DType dtype = c_.Exchange().output_dtype;
    const auto bytes = c_.hidden * static_cast<int64_t>(SizeOf(dtype));
    const std::vector<std::byte> own = OutputsOf(c_, some);
    const ExpertMap experts = c_.Experts();
    std::vector<float> y(some.x.size(), 0.0f);
    for (size_t i = 0; i < some.topk.ids.size(); ++i) {
      const int32_t id = some.topk.ids[i];
      if (id < 0) continue;
      const std::byte* row = (experts.Owner(id) == 0 ? own.data() : At(0, at_.outputs)) + i * bytes;
      AddWeightedRow(dtype, row, some.topk.weights[i], c_.hidden,
                     y.data() + static_cast<int64_t>(i) / c_.k * c_.hidden);
    }
    return y;
  }

  const ArenaCase& c_;
  const DeepEpArena at_;
  SymmetricMemory& memory_;
  const size_t base_;
  uint32_t round_ = 0;
};

void Expect(const ArenaCase& c, const std::vector<SomeTokens>& batches) {
  RunArenaRanks(c, std::ssize(batches), [&](RankComm& comm) {
    PlainSource source(c, comm);
    for (size_t i = 0; i < batches.size(); ++i)
      EXPECT_TRUE(kernels::SameBits(source.Run(batches[i]), SumsOf(c, batches[i]))) << i;
  });
}

TEST(ArenaTest, CpusAnswerAGpuInAllFormats) {
  const std::vector<RowFormat> formats = {
      {DType::kF32}, {DType::kBF16}, {.dtype = DType::kBF16, .fp8 = true}};
  for (const RowFormat& format : formats)
    for (const int ranks : {2, 3}) {
      const ArenaCase c = {.ranks = ranks,
                           .slots = ranks == 2 ? std::vector{3, 7} : std::vector{2, 5, 6},
                           .format = format};
      SCOPED_TRACE(
          fmt::format("{} ranks, {}{}", ranks, Name(format.dtype), format.fp8 ? " fp8" : ""));
      Expect(c, {c.Tokens(40, 1), c.Tokens(1, 2), c.Tokens(0, 3), c.Tokens(17, 4),
                 c.TokensOf(0, 5, 5), c.TokensOf(ranks - 1, 33, 6)});
    }
}

TEST(ArenaTest, RoundsReuseOneSlot) {
  const ArenaCase c = {.slots = {2, 2}, .k = 2, .hidden = 16, .max_tokens = 4};
  std::vector<SomeTokens> batches;
  for (unsigned i = 0; i < 200; ++i) batches.push_back(c.Tokens(i % 5, i));
  Expect(c, batches);
}

TEST(ArenaTest, AnAbortEndsTheWaitForAGpu) {
  const ArenaCase c;
  const auto run = [&] {
    RunArenaRanks(c, 2, [&](RankComm& comm) {
      PlainSource source(c, comm);
      source.Run(c.Tokens(3, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(60));  // the wait sleeps meanwhile
      comm.memory->Abort("the GPU has failed");
    });
  };
  EXPECT_THAT(ErrorOf(run, ErrorKind::kPeer), HasSubstr("the GPU has failed"));
}

TEST(ArenaTest, TheWaitForAGpuHasADeadline) {
  const ArenaCase c;
  const auto run = [&] {
    RunArenaRanks(
        c, 1, [&](RankComm& comm) { const PlainSource source(c, comm); },
        std::chrono::milliseconds(100));
  };
  EXPECT_THAT(ErrorOf(run, ErrorKind::kTimeout), AllOf(HasSubstr("rank 1 waited 0.1 s for rank 0"),
                                                       HasSubstr("deepep dispatch rows")));
}

}  // namespace
}  // namespace switchyard
