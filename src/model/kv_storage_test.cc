#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/device.h"
#include "model/model.h"
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
