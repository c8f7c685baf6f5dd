// Copies between caches of different shards, page sizes and pages.
#include "engine/kv_transfer/kv_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "core/error.h"

namespace switchyard {
namespace {

// A layer of a cache, with memory. A row's bytes name its position and head.
class Layer {
 public:
  // `shards`: the number of ranks. With more ranks than heads, several hold the same head.
  Layer(const KvLayerFormat& format, int shards, int64_t page_size, int64_t positions,
        uint64_t seed)
      : format_(format), page_size_(page_size) {
    const int64_t needed = (positions + page_size - 1) / page_size;
    num_pages_ = needed + 3;
    pages_.resize(num_pages_);
    std::iota(pages_.begin(), pages_.end(), 0);
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937_64(seed));
    pages_.resize(needed);
    memory_.resize(shards);
    for (int i = 0; i < shards; ++i) {
      const Range heads = format.heads >= shards
                              ? EvenPart(format.heads, shards, i)
                              : Range{i * format.heads / shards, i * format.heads / shards + 1};
      const int64_t rows = num_pages_ * page_size * heads.size();
      memory_[i].resize(rows * (format.key_bytes + format.value_bytes), std::byte{0xee});
      shards_.push_back({memory_[i].data(),
                         format.value_bytes ? memory_[i].data() + rows * format.key_bytes : nullptr,
                         heads});
    }
  }

  KvLayerRows rows() const { return {shards_, pages_, page_size_, num_pages_}; }

  // The bytes of the row, in every shard that has its head.
  std::vector<std::span<std::byte>> Rows(int64_t position, int64_t head, bool keys) {
    std::vector<std::span<std::byte>> found;
    const int64_t slot = pages_[position / page_size_] * page_size_ + position % page_size_;
    const int64_t bytes = keys ? format_.key_bytes : format_.value_bytes;
    for (const KvShard& shard : shards_) {
      if (head < shard.heads.begin || head >= shard.heads.end) continue;
      std::byte* const base = keys ? shard.keys : shard.values;
      found.emplace_back(base + (slot * shard.heads.size() + head - shard.heads.begin) * bytes,
                         bytes);
    }
    return found;
  }

  static std::byte Byte(int64_t position, int64_t head, bool keys, size_t i) {
    return static_cast<std::byte>(position * 31 + head * 7 + (keys ? 1 : 0) + i * 3);
  }
  void Fill(int64_t begin, int64_t end) {
    ForEach(begin, end, [](std::span<std::byte> row, int64_t position, int64_t head, bool keys) {
      for (size_t i = 0; i < row.size(); ++i) row[i] = Byte(position, head, keys, i);
    });
  }
  void ExpectFilled(int64_t begin, int64_t end) {
    ForEach(begin, end, [](std::span<std::byte> row, int64_t position, int64_t head, bool keys) {
      for (size_t i = 0; i < row.size(); ++i)
        ASSERT_EQ(row[i], Byte(position, head, keys, i)) << position << ' ' << head << ' ' << keys;
    });
  }
  void ExpectUntouched(int64_t begin, int64_t end) {
    ForEach(begin, end, [](std::span<std::byte> row, int64_t position, int64_t head, bool) {
      for (const std::byte byte : row) ASSERT_EQ(byte, std::byte{0xee}) << position << ' ' << head;
    });
  }

 private:
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, const Visit& visit) {
    for (int64_t position = begin; position < end; ++position)
      for (int64_t head = 0; head < format_.heads; ++head)
        for (const bool keys : {true, false})
          if (keys || format_.value_bytes > 0)
            for (const auto row : Rows(position, head, keys)) visit(row, position, head, keys);
  }

  const KvLayerFormat format_;
  const int64_t page_size_;
  int64_t num_pages_ = 0;
  std::vector<int32_t> pages_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<KvShard> shards_;
};

KvLayerFormat Grouped(int64_t heads) { return {.heads = heads, .key_bytes = 6, .value_bytes = 10}; }
const KvLayerFormat kLatent{.heads = 1, .key_bytes = 14, .value_bytes = 0};

TEST(KvRowsTest, RowsArriveInEveryLayout) {
  constexpr int64_t kPositions = 23;
  uint64_t seed = 0;
  for (const KvLayerFormat& format : {Grouped(4), Grouped(2), Grouped(1), kLatent}) {
    for (const int from_ranks : {1, 2, 4}) {
      for (const int to_ranks : {1, 2, 4}) {
        for (const auto& [from_page, to_page] : {std::pair(4, 4), {1, 16}, {5, 3}, {16, 1}}) {
          SCOPED_TRACE(fmt::format("{} heads, {} to {} ranks, pages of {} to {}", format.heads,
                                   from_ranks, to_ranks, from_page, to_page));
          Layer from(format, from_ranks, from_page, kPositions, ++seed);
          Layer to(format, to_ranks, to_page, kPositions, ++seed);
          const int64_t begin = seed % 9, end = kPositions - seed % 5;
          from.Fill(0, kPositions);
          CopyKvRows(format, from.rows(), to.rows(), begin, end);
          to.ExpectFilled(begin, end);
          to.ExpectUntouched(0, begin);
          to.ExpectUntouched(end, kPositions);

          // Copies the rows to a buffer in the canonical order, and from there to the last cache.
          Layer last(format, to_ranks, to_page, kPositions, ++seed);
          std::vector<std::byte> bytes(format.Bytes(end - begin));
          const CanonicalRows canonical(format, begin, end, bytes);
          CopyKvRows(format, from.rows(), canonical.rows(), begin, end);
          CopyKvRows(format, canonical.rows(), last.rows(), begin, end);
          last.ExpectFilled(begin, end);
          last.ExpectUntouched(end, kPositions);
        }
      }
    }
  }
}

TEST(KvRowsTest, TheCanonicalOrderIsKeysThenValuesByPositionThenHead) {
  const KvLayerFormat format = Grouped(2);
  Layer layer(format, 2, 4, 8, 1);
  layer.Fill(0, 8);
  std::vector<std::byte> bytes(format.Bytes(3));
  CopyKvRows(format, layer.rows(), CanonicalRows(format, 2, 5, bytes).rows(), 2, 5);
  size_t at = 0;
  for (const bool keys : {true, false})
    for (int64_t position = 2; position < 5; ++position)
      for (int64_t head = 0; head < 2; ++head)
        for (size_t i = 0; i < (keys ? 6u : 10u); ++i)
          ASSERT_EQ(bytes[at++], Layer::Byte(position, head, keys, i));
  EXPECT_EQ(at, bytes.size());
}

TEST(KvRowsTest, AFormatStatesTheRowsOfEachLayer) {
  ModelConfig model;
  model.attention = {.heads = 8, .kv_heads = 2, .head_dim = 24, .v_head_dim = 16};
  model.layers = {{}, {.kv_heads = 4}, {.kv_heads = 4}, {}};
  const KvFormat format = KvFormat::Of(model, DType::kBF16);
  const KvLayerFormat two{.heads = 2, .key_bytes = 48, .value_bytes = 32};
  const KvLayerFormat four{.heads = 4, .key_bytes = 48, .value_bytes = 32};
  EXPECT_EQ(format.layers, (std::vector{two, four, four, two}));
  EXPECT_EQ(format.LargestPosition(), 320);
  EXPECT_EQ(format.Text(),
            "1 layer, 2 heads of 48 + 32 bytes, then 2 layers, 4 heads of 48 + 32 bytes, then 1 "
            "layer, 2 heads of 48 + 32 bytes (bfloat16)");
  model.layers = {{}, {}};
  EXPECT_EQ(KvFormat::Of(model, DType::kBF16).Text(),
            "2 layers, 2 heads of 48 + 32 bytes (bfloat16)");
}

TEST(KvRowsTest, KeysOfAnIndexAreInThePlaceOfValues) {
  const ModelConfig model =
      LoadModelConfig(std::filesystem::path(SWITCHYARD_TEST_DATA) / "families/deepseek_v32");
  const KvFormat format = KvFormat::Of(model, DType::kBF16);
  const KvLayerFormat rows{
      .heads = 1,
      .key_bytes = 2 * (model.attention.kv_lora_rank + model.attention.qk_rope_head_dim),
      .value_bytes = 2 * model.attention.index_head_dim};
  EXPECT_EQ(format.layers, std::vector(model.layers.size(), rows));
}

// A layer without an indexer has no index keys, in the format and in the memory.
TEST(KvRowsTest, ALayerWithASharedIndexHasNoIndexKeys) {
  const ModelConfig model =
      LoadModelConfig(std::filesystem::path(SWITCHYARD_TEST_DATA) / "families/glm_moe_dsa_shared");
  const KvFormat format = KvFormat::Of(model, DType::kBF16);
  KvStorage storage(model, Mesh(), /*num_pages=*/1, /*page_size=*/4, DType::kBF16);
  int64_t bytes = 0, shared = 0;
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    const bool indexer = !model.layers[layer].shared_index;
    shared += indexer ? 0 : 1;
    EXPECT_EQ(storage.v(layer).defined(), indexer);
    EXPECT_EQ(format.layers[layer].value_bytes, indexer ? 2 * model.attention.index_head_dim : 0);
    bytes += format.layers[layer].Bytes(1);
  }
  EXPECT_GT(shared, 0);
  EXPECT_EQ(static_cast<int64_t>(KvStorage::BytesPerToken(model, Mesh(), DType::kBF16)), bytes);
}

TEST(KvRowsTest, NothingIsCopiedFromOrToPagesOutOfRange) {
  const KvLayerFormat format = Grouped(2);
  Layer from(format, 1, 4, 8, 1), to(format, 1, 4, 8, 2);
  CopyKvRows(format, from.rows(), to.rows(), 8, 8);  // no positions
  EXPECT_THROW(CopyKvRows(format, from.rows(), to.rows(), 0, 9), Error);
  EXPECT_THROW(CopyKvRows(format, from.rows(), to.rows(), -1, 2), Error);
  EXPECT_THROW(CopyKvRows(format, from.rows(), to.rows(), 3, 2), Error);
  const std::vector<int32_t> wild = {0, 99}, negative = {-1, 0};
  KvLayerRows rows = to.rows();
  rows.pages = wild;
  CopyKvRows(format, from.rows(), rows, 0, 4);
  EXPECT_THROW(CopyKvRows(format, from.rows(), rows, 0, 5), Error);
  rows.pages = negative;
  EXPECT_THROW(CopyKvRows(format, from.rows(), rows, 0, 5), Error);
}

TEST(KvBellTest, NoRingIsLost) {
  alignas(64) std::array<std::byte, 4096> memory{};
  KvBell heard(memory), rung(memory);
  const uint32_t first = heard.rings();
  rung.Ring();
  heard.Wait(first, std::chrono::minutes(10));  // returns at once: it has rung since
  EXPECT_EQ(heard.rings(), first + 1);
  std::atomic<uint32_t> count{0};
  std::thread ringer([&] {
    for (uint32_t i = 0; i < 100; ++i) {
      while (count.load() < i) std::this_thread::yield();
      rung.Ring();
    }
  });
  for (uint32_t i = 0; i < 100; ++i) {
    const uint32_t seen = first + 1 + i;
    while (heard.rings() == seen) heard.Wait(seen, std::chrono::minutes(10));
    count.store(i + 1);
  }
  ringer.join();
  EXPECT_EQ(heard.rings(), first + 101);
}

}  // namespace
}  // namespace switchyard
