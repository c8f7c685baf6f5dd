#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/cache_rows.h"
#include "kernels/device.h"
#include "model/model.h"
#include "model/stages.h"
#include "moe/router/router_fault.h"

namespace switchyard {
namespace {

ModelConfig ConfigOf(const char* fixture) {
  return LoadModelConfig(std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / fixture);
}

TEST(KvStorageTest, ASequenceHasTheFirstFaultOfItsKeys) {
  ThreadPool pool(1);
  const auto device = kernels::MakeCpuDevice(pool);
  KvStorage kv(ConfigOf("olmoe"), Mesh(), /*num_pages=*/4, /*page_size=*/4, DType::kF32);
  int32_t* faults = kv.router_faults();
  faults[3 * 4 + 1] = FaultOf(1, 5);
  faults[0 * 4 + 0] = FaultOf(1, 2);
  faults[2 * 4 + 0] = FaultOf(0, 9);
  const int32_t pages[] = {3, 0, 2, 1};
  const std::vector<kernels::SequenceSpan> sequences = {{.kv_len = 1, .pages = pages},
                                                        {.kv_len = 4, .pages = pages},
                                                        {.kv_len = 5, .pages = pages},
                                                        {.kv_len = 16, .pages = pages},
                                                        {.kv_len = 4, .pages = pages + 3}};
  EXPECT_EQ(kv.RouterFaultsOf(sequences, *device),
            (std::vector<int32_t>{0, FaultOf(1, 5), FaultOf(1, 2), FaultOf(0, 9), 0}));
}

// The places of entries and of index entries do not overlap, and fill the memory that the plan
// counts.
TEST(KvStorageTest, EntriesHavePlacesInTheirPages) {
  const ModelConfig config = ConfigOf("../families/deepseek_v4");
  constexpr int64_t kPages = 3, kPageSize = 8;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    KvStorage kv(config, Mesh(), kPages, kPageSize, dtype);
    const int64_t row = kernels::CacheRowBytes(dtype, config.attention.head_dim),
                  index_row = kernels::CacheRowBytes(dtype, config.attention.index_head_dim);
    size_t rows = 0;
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      const int64_t ratio = config.layers[layer].compress;
      EXPECT_EQ(static_cast<int64_t>(kv.k(layer).num_bytes()), kPages * kPageSize * row);
      EXPECT_EQ(kv.v(layer).defined(), ratio > 0);
      rows += kv.k(layer).num_bytes();
      if (ratio == 0) continue;
      rows += kv.v(layer).num_bytes();
      std::vector<int> uses(kv.v(layer).num_bytes());
      const auto use = [&](const kernels::EntryPlaces& places, int64_t slot, int64_t bytes) {
        const auto* place = static_cast<const std::byte*>(places.Of(slot));
        const int64_t first = place - static_cast<const std::byte*>(kv.v(layer).raw());
        ASSERT_TRUE(first >= 0 && first + bytes <= std::ssize(uses));
        for (int64_t i = first; i < first + bytes; ++i) EXPECT_EQ(++uses[i], 1);
      };
      // A page whose blocks begin anywhere has at most one end of a block in each span.
      for (int64_t slot = kernels::EntrySpan(ratio) - 1; slot < kPages * kPageSize;
           slot += kernels::EntrySpan(ratio)) {
        use(kv.Entries(config, layer), slot, row);
        if (config.layers[layer].overlaps) use(kv.IndexEntries(config, layer), slot, index_row);
      }
    }
    EXPECT_EQ(rows, KvStorage::BytesPerToken(config, Mesh(), dtype) * kPages * kPageSize);
    EXPECT_EQ(KvStorage::BytesPerToken(config, Mesh({.tp = 2}, 1), dtype),
              KvStorage::BytesPerToken(config, Mesh(), dtype));
  }
}

// Two layers with an indexer and one without: entries, then index entries, have 3 floats for each
// element, twice if they overlap. Each layer has the size of the largest.
TEST(KvStorageTest, StatesOfUnfinishedBlocksHaveTheSizeOfTheLargest) {
  const ModelConfig config = ConfigOf("../families/deepseek_v4");
  constexpr int64_t kFloats = 6 * 16 + 6 * 12;
  EXPECT_EQ(StateStorage::SlotFloats(config, Mesh()), kFloats);
  EXPECT_EQ(StateStorage::SlotFloats(config, Mesh({.tp = 2}, 1)), kFloats);
  EXPECT_EQ(StateStorage::BytesPerSlot(config, Mesh()), 3 * kFloats * sizeof(float));
  EXPECT_EQ(StateStorage::BytesPerSlot(ConfigOf("olmoe"), Mesh()), 0u);
  // So has the stage of the layer without an indexer. The first stage has no such state.
  const ModelConfig stage = StageConfigOf(config, {.begin = 2, .end = 3});
  EXPECT_EQ(StateStorage::SlotFloats(stage, Mesh()), kFloats);
  EXPECT_EQ(StateStorage::BytesPerSlot(stage, Mesh()), kFloats * sizeof(float));
  const ModelConfig first = StageConfigOf(config, {.begin = 0, .end = 1});
  EXPECT_EQ(StateStorage::BytesPerSlot(first, Mesh()), 0u);
}

// Rows of keys, values and faults move together, in the order of the moves.
TEST(KvStorageTest, RowsMoveInAllLayers) {
  ThreadPool pool(1);
  const auto device = kernels::MakeCpuDevice(pool);
  for (const char* fixture : {"olmoe", "deepseek_v3"}) {
    const ModelConfig config = ConfigOf(fixture);
    for (const DType dtype : {DType::kF32, DType::kI8}) {
      KvStorage kv(config, Mesh(), /*num_pages=*/2, /*page_size=*/4, dtype);
      std::vector<Tensor*> all;
      for (int64_t layer = 0; layer < config.num_layers(); ++layer)
        for (Tensor* tensor : {&kv.k(layer), &kv.v(layer)})
          if (tensor->defined()) all.push_back(tensor);
      const auto row = [](Tensor* tensor, int64_t slot) {
        const size_t bytes = tensor->num_bytes() / 8;
        return std::span(static_cast<std::byte*>(tensor->mutable_raw()) + slot * bytes, bytes);
      };
      for (size_t i = 0; i < all.size(); ++i)
        for (int64_t slot = 0; slot < 8; ++slot)
          std::ranges::fill(row(all[i], slot), std::byte(10 * i + slot));
      for (int32_t slot = 0; slot < 8; ++slot) kv.router_faults()[slot] = 100 + slot;
      kv.MoveRows(std::vector<SlotMove>{{3, 1}, {7, 3}, {5, 5}}, *device);
      const int64_t from[] = {0, 3, 2, 7, 4, 5, 6, 7};
      for (int64_t slot = 0; slot < 8; ++slot) {
        EXPECT_EQ(kv.router_faults()[slot], 100 + from[slot]);
        for (size_t i = 0; i < all.size(); ++i)
          for (const std::byte byte : row(all[i], slot))
            ASSERT_EQ(byte, std::byte(10 * i + from[slot])) << fixture << " " << slot;
      }
    }
  }
}

TEST(KvStorageTest, UsesMemoryThatItDoesNotOwn) {
  const ModelConfig config = ConfigOf("olmoe");
  const Mesh mesh;
  const size_t bytes = KvStorage::Bytes(config, mesh, 3, 4, DType::kBF16);
  EXPECT_GE(bytes, 3 * 4 * (KvStorage::BytesPerToken(config, mesh, DType::kBF16) + 4));
  std::vector<std::byte> memory(bytes);
  const auto filled = [&](std::byte value) {
    KvStorage kv(config, mesh, 3, 4, DType::kBF16, memory);
    bool equal = true;
    for (int64_t layer = 0; layer < config.num_layers(); ++layer) {
      for (Tensor* tensor : {&kv.k(layer), &kv.v(layer)}) {
        const auto* data = static_cast<const std::byte*>(tensor->raw());
        for (size_t i = 0; i < tensor->num_bytes(); ++i) equal &= data[i] == value;
        std::memset(tensor->mutable_raw(), 7, tensor->num_bytes());
      }
    }
    kv.router_faults()[11] = 5;
    return equal;
  };
  EXPECT_TRUE(filled(std::byte(0)));  // so no two layers overlap
  EXPECT_TRUE(filled(std::byte(7)));
}

TEST(KvStorageTest, EachLayerHasItsOwnRows) {
  ModelConfig config;
  config.attention = {.heads = 8, .kv_heads = 2, .head_dim = 24, .v_head_dim = 16};
  config.layers = {{}, {.kv_heads = 4}, {.kv_heads = 1}};
  constexpr int64_t kSlots = 3 * 4;
  for (const int tp : {1, 2}) {
    const Mesh mesh({.tp = tp}, tp - 1);
    const std::vector<int64_t> heads =
        tp == 1 ? std::vector<int64_t>{2, 4, 1} : std::vector<int64_t>{1, 2, 1};
    std::vector<std::byte> memory(KvStorage::Bytes(config, mesh, 3, 4, DType::kBF16));
    KvStorage owned(config, mesh, 3, 4, DType::kBF16);
    KvStorage view(config, mesh, 3, 4, DType::kBF16, memory);
    int64_t sum = 0;
    for (int64_t layer = 0; layer < 3; ++layer) {
      const KvRowBytes row = KvStorage::RowBytes(config, layer, mesh, DType::kBF16);
      EXPECT_EQ(row.k, heads[layer] * 24 * 2);
      EXPECT_EQ(row.v, heads[layer] * 16 * 2);
      sum += row.total();
      for (KvStorage* kv : {&owned, &view}) {
        EXPECT_EQ(static_cast<int64_t>(kv->k(layer).num_bytes()), kSlots * row.k);
        EXPECT_EQ(static_cast<int64_t>(kv->v(layer).num_bytes()), kSlots * row.v);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(KvStorage::BytesPerToken(config, mesh, DType::kBF16)), sum);
  }
}

TEST(KvStorageTest, WithoutExpertsThereAreNoFaults) {
  ThreadPool pool(1);
  const auto device = kernels::MakeCpuDevice(pool);
  KvStorage kv(ConfigOf("llama"), Mesh(), /*num_pages=*/1, /*page_size=*/4, DType::kF32);
  EXPECT_EQ(kv.router_faults(), nullptr);
  const int32_t page = 0;
  const std::vector<kernels::SequenceSpan> one = {{.kv_len = 3, .pages = &page}};
  EXPECT_EQ(kv.RouterFaultsOf(one, *device), std::vector<int32_t>{0});
}

}  // namespace
}  // namespace switchyard
