// Copies of recurrent states between ranks of different layouts.
#include "engine/kv_transfer/kv_states.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/state_rule.h"
#include "model/linear_layout.h"

namespace switchyard {
namespace {

using kernels::StateRule;

// The state of a layer on several ranks. A float names its key head and its place there.
class State {
 public:
  State(const LinearAttentionConfig& c, int ranks) : c_(c) {
    const int64_t heads = c.key_heads / ranks, row = heads * Row(), width = c.conv_width - 1;
    for (int rank = 0; rank < ranks; ++rank)
      memory_.emplace_back(width * row + heads * Values() * c.key_dim, -1.0f);
    for (int rank = 0; rank < ranks; ++rank)
      shards_.push_back({.inputs = memory_[rank].data(),
                         .heads = memory_[rank].data() + width * row,
                         .key_heads = {rank * heads, (rank + 1) * heads}});
  }
  const std::vector<KvStateShard>& shards() const { return shards_; }

  void Fill() {
    ForEach([](float& value, float want) { value = want; });
  }
  void ExpectFilled() {
    size_t count = 0, size = 0;
    ForEach([&](const float& value, float want) {
      ASSERT_EQ(value, want);
      ++count;
    });
    for (const auto& of_rank : memory_) size += of_rank.size();
    EXPECT_EQ(count, size);
    EXPECT_EQ(static_cast<int64_t>(size * sizeof(float)), KvStateFormat{c_}.Bytes());
  }

 private:
  int64_t Values() const { return c_.group() * c_.value_dim; }
  int64_t Row() const { return 2 * c_.key_dim + Values(); }

  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (const KvStateShard& shard : shards_) {
      const int64_t heads = shard.key_heads.size();
      const LinearLayout at(c_, heads);
      for (int64_t h = 0; h < heads; ++h) {
        auto next = static_cast<float>((shard.key_heads.begin + h) * 10000);
        const auto part = [&](int64_t row, const LinearLayout::Part& p, int64_t width) {
          for (int64_t i = 0; i < width; ++i)
            visit(shard.inputs[row * at.mixed_width + p.first + h * p.stride + i], next++);
        };
        for (int64_t row = 0; row + 1 < c_.conv_width; ++row) {
          part(row, at.q, c_.key_dim);
          part(row, at.k, c_.key_dim);
          part(row, at.v, Values());
        }
        for (int64_t i = 0; i < Values() * c_.key_dim; ++i)
          visit(shard.heads[h * Values() * c_.key_dim + i], next++);
      }
    }
  }

  const LinearAttentionConfig c_;
  std::vector<std::vector<float>> memory_;
  std::vector<KvStateShard> shards_;
};

TEST(KvStatesTest, StatesArriveInEveryLayout) {
  for (const auto& [rule, separate] : {std::pair(StateRule::kDelta, false),
                                       {StateRule::kDelta, true},
                                       {StateRule::kKeyDelta, true},
                                       {StateRule::kMamba2, true}}) {
    const LinearAttentionConfig c{.rule = rule,
                                  .key_heads = 4,
                                  .value_heads = 8,
                                  .key_dim = 3,
                                  .value_dim = 5,
                                  .conv_width = rule == StateRule::kKeyDelta ? 1 : 4,
                                  .separate = separate};
    for (const int from_ranks : {1, 2, 4}) {
      for (const int to_ranks : {1, 2, 4}) {
        SCOPED_TRACE(::testing::Message() << from_ranks << " to " << to_ranks);
        State from(c, from_ranks), to(c, to_ranks), last(c, to_ranks);
        from.Fill();
        const KvStateFormat format{c};
        CopyKvState(format, from.shards(), to.shards());
        to.ExpectFilled();
        std::vector<std::byte> bytes(static_cast<size_t>(format.Bytes()));
        const KvStateShard whole = CanonicalState(format, bytes);
        CopyKvState(format, from.shards(), {&whole, 1});
        CopyKvState(format, {&whole, 1}, last.shards());
        last.ExpectFilled();
      }
    }
  }
}

// The states of unfinished blocks are the same on all ranks of a group.
TEST(KvStatesTest, WholeStatesArriveOnEveryRank) {
  const KvStateFormat format{.whole_floats = 7};
  EXPECT_TRUE(format.any());
  EXPECT_EQ(format.Bytes(), 28);
  std::vector<std::vector<float>> from(2, {1, 2, 3, 4, 5, 6, 7, 8}), to(3, std::vector<float>(8));
  const auto shards = [](std::vector<std::vector<float>>& ranks) {
    std::vector<KvStateShard> all;
    all.reserve(ranks.size());
    for (std::vector<float>& rank : ranks)
      all.push_back({.inputs = rank.data(), .heads = rank.data() + 4, .key_heads = {0, 1}});
    return all;
  };
  std::vector<std::byte> bytes(28);
  const KvStateShard whole = CanonicalState(format, bytes);
  CopyKvState(format, shards(from), {&whole, 1});
  CopyKvState(format, {&whole, 1}, shards(to));
  for (const std::vector<float>& rank : to)
    EXPECT_EQ(rank, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 0}));
}

}  // namespace
}  // namespace switchyard
