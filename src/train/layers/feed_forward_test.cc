#include "train/layers/feed_forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::train {
namespace {

struct Shape {
  int64_t hidden, width;
  std::vector<int32_t> offsets;  // [6] row offsets of five networks
};
// Several tiles of 96 rows, odd row counts, networks without rows; widths not divisible by tiles.
const Shape kShapes[] = {{64, 32, {0, 96, 96, 97, 300, 301}},
                         {50, 27, {0, 0, 0, 40, 40, 40}},
                         {192, 64, {0, 1, 3, 3, 195, 200}}};

std::vector<float> Random(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(count);
  for (float& v : values) v = uniform(random);
  return values;
}

struct Results {
  std::vector<float> out, dx;
  std::vector<std::vector<float>> gradients;
  bool operator==(const Results&) const = default;
};

// Runs forward and backward of five networks. `tiles`: by tiles; otherwise by products, which are
// used if there are more threads than networks.
Results RunAll(const Shape& shape, ProductDtype dtype, int threads, bool tiles, bool accumulate) {
  ParameterSet<float> set(dtype);
  std::vector<FeedForward<float>> networks;
  for (int e = 0; e < 5; ++e) {
    const std::string name = "e" + std::to_string(e) + ".";
    networks.push_back(FeedForward<float>::Make(set, name + "gate", name + "up", name + "down",
                                                shape.hidden, shape.width));
  }
  uint32_t seed = 10;
  for (Parameter<float>& p : set.all()) {
    p.value = Random(std::ssize(p.value), ++seed);
    // Initial gradient, to which the pass adds.
    p.gradient = Random(std::ssize(p.gradient), ++seed);
  }
  ThreadPool pool(threads);
  const std::span<const FeedForward<float>> all(networks);
  const int64_t rows = shape.offsets.back();
  const std::vector<float> x = Random(rows * shape.hidden, 1),
                           dout = Random(rows * shape.hidden, 2);
  Results r{.out = std::vector<float>(rows * shape.hidden, 9.0f),
            .dx = Random(rows * shape.hidden, 3)};
  FeedForwardState<float> state;
  if (tiles) {
    // Gathered rows give the same bits as dense rows.
    const auto from = [&](const std::vector<float>& rows) {
      return TileRows<float>{.put = [&](int64_t begin, int64_t count, float* to) {
        std::copy_n(rows.data() + begin * shape.hidden, count * shape.hidden, to);
      }};
    };
    ForwardTiles(all, shape.offsets, from(x), &state, r.out.data(), pool);
    BackwardTiles(all, shape.offsets, from(x), &state, from(dout), r.dx.data(), accumulate, pool);
  } else {
    EXPECT_FALSE(UsesTiles(all, pool));
    Forward(all, shape.offsets, x.data(), &state, r.out.data(), pool);
    Backward(all, shape.offsets, x.data(), &state, dout.data(), r.dx.data(), accumulate, pool);
  }
  for (const Parameter<float>& p : set.all()) r.gradients.push_back(p.gradient);
  return r;
}

TEST(FeedForwardTest, TilesHaveTheBitsOfProducts) {
  for (const Shape& shape : kShapes) {
    for (const ProductDtype dtype : {ProductDtype::kFloat32, ProductDtype::kBFloat16}) {
      for (const bool accumulate : {false, true}) {
        const Results products = RunAll(shape, dtype, 6, false, accumulate);
        EXPECT_EQ(RunAll(shape, dtype, 1, true, accumulate), products);
        EXPECT_EQ(RunAll(shape, dtype, 3, true, accumulate), products);
      }
    }
  }
}

TEST(FeedForwardTest, LargeNetworksAndFewOfThemRunByProducts) {
  ParameterSet<float> set;
  const auto network = [&](const std::string& name, int64_t width) {
    return FeedForward<float>::Make(set, name + "g", name + "u", name + "d", 64, width);
  };
  const std::vector<FeedForward<float>> large{network("a", 4096), network("b", 4096)};
  const std::vector<FeedForward<float>> small{network("c", 32), network("d", 32)};
  ThreadPool one(1), two(2);
  EXPECT_FALSE(UsesTiles<float>(large, one));
  EXPECT_TRUE(UsesTiles<float>(small, one));
  EXPECT_FALSE(UsesTiles<float>(small, two));
}

}  // namespace
}  // namespace switchyard::train
