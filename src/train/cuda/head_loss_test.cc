#include "train/cuda/head_loss.h"

#include <gtest/gtest.h>

#include "train/cuda/testing.h"

namespace switchyard::train::gpu {
namespace {

class TrainHeadLoss : public TrainCudaTest {};

// Cross-entropy with a vocabulary that is partitioned over the ranks of `parts` columns each.
TEST_F(TrainHeadLoss, LossAndGradientOfWholeAndPartitionedVocabularies) {
  for (const std::vector<int64_t>& parts :
       {std::vector<int64_t>{1000}, {3}, {700, 41}, {5, 1, 900}})
    for (const bool bf16 : {false, true}) {
      const int64_t rows = 21;
      const float scale = 0.25f;
      int64_t vocab = 0;
      for (const int64_t part : parts) vocab += part;
      std::vector<double> all(rows * vocab);
      std::normal_distribution<float> normal(0.0f, 4.0f);
      for (double& x : all) x = normal(random_);
      std::vector<int32_t> targets(rows);
      for (int32_t& target : targets)
        target = random_() % 4 == 0 ? -1 : static_cast<int32_t>(random_() % vocab);
      const cuda::DeviceMemory on_device = Upload(targets);

      const auto ranks = static_cast<int>(parts.size());
      const cuda::DeviceMemory statistics = Upload(std::vector<LogitStatistic>(ranks * rows));
      std::vector<TestArray> logits;
      std::vector<LogitShape> shapes;
      int64_t first = 0;
      for (int r = 0; r < ranks; ++r) {
        const int64_t columns = parts[r], ld = columns + (columns % 4 == 0 ? 4 : 3);
        std::vector<double> own(rows * ld, 1000.0);  // columns of nothing
        for (int64_t i = 0; i < rows; ++i)
          std::copy_n(all.begin() + i * vocab + first, columns, own.begin() + i * ld);
        logits.emplace_back(false, own);
        shapes.push_back(
            {.rows = rows, .vocab = columns, .ld = ld, .first_id = static_cast<int32_t>(first)});
        LogitStatistics(shapes[r], logits[r].floats(), on_device.as<int32_t>(),
                        statistics.as<LogitStatistic>() + r * rows, nullptr);
        first += columns;
      }
      std::vector<double> want_losses(rows), want(rows * vocab);
      for (int64_t i = 0; i < rows; ++i) {
        if (targets[i] < 0) continue;
        double sum = 0;
        for (int64_t c = 0; c < vocab; ++c) sum += std::exp(all[i * vocab + c]);
        want_losses[i] = std::log(sum) - all[i * vocab + targets[i]];
        for (int64_t c = 0; c < vocab; ++c)
          want[i * vocab + c] =
              scale * (std::exp(all[i * vocab + c]) / sum - (c == targets[i] ? 1.0 : 0.0));
      }
      first = 0;
      for (int r = 0; r < ranks; ++r) {
        const TestArray losses = TestArray::Filled(false, rows, 77),
                        rounded = TestArray::Filled(true, logits[r].size(), 77);
        // In float32 the gradient replaces the logits.
        const Array dlogits = bf16 ? Array(rounded) : Array(logits[r]);
        LogitGradient(shapes[r], logits[r].floats(), on_device.as<int32_t>(),
                      statistics.as<LogitStatistic>(), ranks, scale, losses.floats(), dlogits,
                      nullptr);
        ExpectClose(losses, want_losses, 1e-6, "losses");
        const std::vector<double> got = bf16 ? rounded.Read() : logits[r].Read();
        std::vector<double> own, want_own;
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t c = 0; c < parts[r]; ++c) {
            own.push_back(got[i * shapes[r].ld + c]);
            want_own.push_back(want[i * vocab + first + c]);
          }
        ExpectClose(own, want_own, 1e-5, bf16 ? 1.0 / 256 : 1e-5, "gradient of the logits");
        first += parts[r];
      }
    }
}

TEST_F(TrainHeadLoss, SumInOrderAddsToTheOldSum) {
  for (const int64_t count : {0, 1, 1023, 5000}) {
    const TestArray values = TestArray::Random(false, count, random_);
    const cuda::DeviceMemory out = Upload(std::vector<double>{3.5});
    double want = 3.5;
    for (const double x : values.values) want += x;
    SumInOrder(values.floats(), count, true, out.as<double>(), nullptr);
    EXPECT_NEAR(Download<double>(out, 1)[0], want, 1e-10);
    SumInOrder(values.floats(), count, false, out.as<double>(), nullptr);
    EXPECT_NEAR(Download<double>(out, 1)[0], want - 3.5, 1e-10);
  }
}

}  // namespace
}  // namespace switchyard::train::gpu
