#include "comm/device/cuda/row_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "comm/device/cuda/test_gpu_ranks.h"
#include "core/testing.h"

namespace switchyard::cuda {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMost = 5000;  // floats of a message

// Numbers of floats of the messages from `stage` to the next one, the same on both ranks.
std::vector<size_t> SizesOf(int stage, int tp_rank) {
  std::mt19937 random(static_cast<uint32_t>(stage * 10 + tp_rank));
  std::vector<size_t> sizes = {kMost, 1, 0, 4};
  for (int i = 0; i < 9; ++i) sizes.push_back(random() % (kMost + 1));
  return sizes;
}

std::vector<float> MessageOf(int stage, int tp_rank, size_t index, size_t size) {
  std::mt19937 random(static_cast<uint32_t>((stage * 10 + tp_rank) * 100) +
                      static_cast<uint32_t>(index));
  std::vector<float> values(size);
  for (float& value : values) value = static_cast<float>(random() % 65536) / 256.0f - 100;
  return values;
}

// Each message has a place of its own in the rank's memory, so that all can be checked at the end.
float* PlaceOf(GpuRank& gpu, size_t index) { return gpu.scratch.as<float>() + index * 8192; }

// More messages than places, of random sizes. Middle stages forward nothing: they receive messages,
// then send their own.
TEST(RowRing, RowsArriveInOrder) {
  if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  for (const MeshShape& shape : {MeshShape{.tp = 2, .pp = 2}, MeshShape{.tp = 1, .pp = 3}}) {
    for (const int places : {1, 3}) {
      GpuRanks{.shape = shape}.Run([&](GpuRank& gpu) {
        const Mesh& mesh = gpu.comm->mesh;
        RowRing ring(*gpu.comm, kMost * sizeof(float), places, std::chrono::milliseconds(20'000));
        const std::vector<size_t> in = SizesOf(mesh.pp_rank() - 1, mesh.tp_rank());
        const std::vector<size_t> out = SizesOf(mesh.pp_rank(), mesh.tp_rank());
        for (size_t i = 0; i < out.size(); ++i)
          gpu.Fill(PlaceOf(gpu, out.size() + i),
                   MessageOf(mesh.pp_rank(), mesh.tp_rank(), i, out[i]));
        gpu.comm->all().Barrier("filled");
        for (size_t i = 0; i < out.size(); ++i) {
          if (!mesh.first_stage()) ring.Receive({PlaceOf(gpu, i), in[i]}, gpu.stream.get());
          if (!mesh.last_stage())
            ring.Send({PlaceOf(gpu, out.size() + i), out[i]}, gpu.stream.get());
        }
        gpu.stream.Synchronize();
        ring.CheckTimeouts();
        gpu.comm->all().Barrier("received");
        if (mesh.first_stage()) return;
        for (size_t i = 0; i < in.size(); ++i)
          EXPECT_EQ(gpu.Read<float>(PlaceOf(gpu, i), in[i]),
                    MessageOf(mesh.pp_rank() - 1, mesh.tp_rank(), i, in[i]));
      });
    }
  }
}

TEST(RowRing, AMissingStageIsNamed) {
  if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
  GpuRanks{.shape = {.tp = 1, .pp = 2}}.Run([&](GpuRank& gpu) {
    RowRing ring(*gpu.comm, 64, 1, std::chrono::milliseconds(300));
    gpu.Fill(PlaceOf(gpu, 0), std::vector<float>{1, 2, 3, 4});
    gpu.comm->all().Barrier("filled");
    if (gpu.comm->mesh.last_stage()) {
      ring.Receive({PlaceOf(gpu, 0), 4}, gpu.stream.get());
      gpu.stream.Synchronize();
      EXPECT_THAT(ErrorOf([&] { ring.CheckTimeouts(); }, ErrorKind::kTimeout),
                  AllOf(HasSubstr("rank 1 (stage 1, GPU "), HasSubstr("waited 0.3 s for rank 0"),
                        HasSubstr("pipeline: hidden rows")));
      // Rows of a message that has not arrived are not copied.
      EXPECT_EQ(gpu.Read<float>(PlaceOf(gpu, 0), 4), (std::vector<float>{1, 2, 3, 4}));
    }
    gpu.comm->all().Barrier("checked");
  });
}

}  // namespace
}  // namespace switchyard::cuda
