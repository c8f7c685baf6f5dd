#include "train/cuda/rows.h"

#include <gtest/gtest.h>

#include <span>

#include "core/parallel.h"
#include "train/cuda/testing.h"
#include "train/layers/pointwise.h"

namespace switchyard::train::gpu {
namespace {

constexpr double kExact = 1e-5;  // of float32 sums

class TrainRows : public TrainCudaTest {
 protected:
  ThreadPool pool_{2};
};

struct NormCase {
  int64_t m, n, ldx;
};
const NormCase kNorms[] = {{1, 4, 4}, {37, 128, 128}, {300, 72, 96}, {9, 1540, 1540}, {0, 8, 8}};

TEST_F(TrainRows, RmsNormAddsTheResidual) {
  for (const NormCase& c : kNorms) {
    for (const bool bf16 : {false, true}) {
      for (const bool adds : {false, true}) {
        const TestArray x = TestArray::Random(bf16, c.m * c.ldx, random_),
                        addend = TestArray::Random(bf16, c.m * c.n, random_),
                        weight = TestArray::Random(false, c.n, random_),
                        sum = TestArray::Filled(bf16, c.m * c.n, 77),
                        y = TestArray::Filled(bf16, c.m * c.n, 77);
        RmsNormParams p = {.m = c.m, .n = c.n, .ldx = c.ldx, .eps = 1e-3f, .x = x};
        if (adds) p.addend = addend;
        if (adds) p.sum = sum;
        p.weight = weight.floats();
        p.y = y;
        RmsNorm(p, nullptr);
        std::vector<double> in(c.m * c.n), want(c.m * c.n);
        for (int64_t t = 0; t < c.m; ++t)
          for (int64_t i = 0; i < c.n; ++i) {
            double& h = in[t * c.n + i];
            h = x.values[t * c.ldx + i] + (adds ? addend.values[t * c.n + i] : 0.0);
            if (adds && bf16) h = ToFloat(ToBF16(static_cast<float>(h)));
          }
        train::RmsNorm<double>({.m = c.m, .n = c.n, .ldx = c.n, .eps = 1e-3f}, in.data(),
                               weight.values.data(), want.data(), pool_);
        ExpectClose(y, want, kExact, "norm");
        if (adds) ExpectClose(sum, in, 1e-7, "sum");
      }
    }
  }
}

TEST_F(TrainRows, RmsNormGradientIsThatOfTheCpu) {
  for (const NormCase& c : kNorms) {
    for (const bool bf16 : {false, true}) {
      for (const bool accumulate : {false, true}) {
        const TestArray x = TestArray::Random(bf16, c.m * c.ldx, random_),
                        dy = TestArray::Random(bf16, c.m * c.n, random_),
                        weight = TestArray::Random(false, c.n, random_),
                        dx = TestArray::Random(bf16, c.m * c.ldx, random_),
                        dweight = TestArray::Random(false, c.n, random_);
        const cuda::DeviceMemory scratch(RmsNormScratch(c.m, c.n) * sizeof(float));
        RmsNormGradient({.m = c.m,
                         .n = c.n,
                         .ldx = c.ldx,
                         .eps = 1e-3f,
                         .x = x,
                         .weight = weight.floats(),
                         .dy = dy,
                         .dx = dx,
                         .accumulate = accumulate,
                         .dweight = dweight.floats(),
                         .scratch = scratch.as<float>()},
                        nullptr);
        std::vector<double> want = dx.values, want_weight = dweight.values;
        train::RmsNormGradient<double>({.m = c.m, .n = c.n, .ldx = c.ldx, .eps = 1e-3f},
                                       x.values.data(), weight.values.data(), dy.values.data(),
                                       want.data(), accumulate, want_weight.data(), pool_);
        ExpectClose(dx, want, 2 * kExact, "gradient of the input");
        ExpectClose(dweight, want_weight, 5 * kExact, "gradient of the weight");
      }
    }
  }
}

// dx in place of dy: the norms of query and key heads use it.
TEST_F(TrainRows, RmsNormGradientMayOverwriteTheGradientOfItsOutput) {
  const int64_t m = 700, n = 64;
  const TestArray x = TestArray::Random(false, m * n, random_),
                  dy = TestArray::Random(false, m * n, random_),
                  weight = TestArray::Random(false, n, random_),
                  dweight = TestArray::Filled(false, n, 0);
  const cuda::DeviceMemory scratch(RmsNormScratch(m, n) * sizeof(float));
  RmsNormGradient({.m = m,
                   .n = n,
                   .eps = 1e-6f,
                   .x = x,
                   .weight = weight.floats(),
                   .dy = dy,
                   .dx = dy,
                   .dweight = dweight.floats(),
                   .scratch = scratch.as<float>()},
                  nullptr);
  std::vector<double> want(m * n), want_weight(n);
  train::RmsNormGradient<double>({.m = m, .n = n, .ldx = n, .eps = 1e-6f}, x.values.data(),
                                 weight.values.data(), dy.values.data(), want.data(), false,
                                 want_weight.data(), pool_);
  ExpectClose(dy, want, 2 * kExact, "gradient of the input");
  ExpectClose(dweight, want_weight, 5 * kExact, "gradient of the weight");
}

TEST_F(TrainRows, RopeRotatesPartsOfHeadsInBothDirections) {
  for (const bool bf16 : {false, true})
    for (const bool interleaved : {false, true})
      for (const bool backward : {false, true}) {
        const int64_t m = 19, heads = 3, head = 20, row = 64, rotary = 12, offset = 5;
        std::vector<int32_t> positions(m);
        for (int32_t& p : positions) p = static_cast<int32_t>(random_() % 40);
        const TestArray table = TestArray::Random(false, 40 * rotary, random_),
                        x = TestArray::Random(bf16, m * row, random_);
        const cuda::DeviceMemory on_device = Upload(positions);
        Rope({.m = m,
              .heads = heads,
              .row = row,
              .head = head,
              .rotary_dim = rotary,
              .offset = offset,
              .interleaved = interleaved,
              .positions = on_device.as<int32_t>(),
              .cos_sin = table.floats(),
              .x = x},
             backward, nullptr);
        std::vector<double> want = x.values;
        const std::vector<float> cos_sin(table.values.begin(), table.values.end());
        train::Rope<double>({.m = m,
                             .heads = heads,
                             .row = row,
                             .head = head,
                             .rotary_dim = rotary,
                             .offset = offset,
                             .interleaved = interleaved,
                             .positions = positions.data(),
                             .cos_sin = cos_sin.data()},
                            want.data(), backward, pool_);
        ExpectClose(x, want, 1e-6, "rotated heads");
      }
}

TEST_F(TrainRows, SwiGluAndItsGradientUseHalvesOfOneArray) {
  for (const bool bf16 : {false, true}) {
    const int64_t m = 23, n = 36, valid = 17;
    const TestArray both = TestArray::Random(bf16, m * 2 * n, random_, 4.0),
                    dout = TestArray::Random(bf16, m * n, random_),
                    out = TestArray::Filled(bf16, m * n, 77),
                    again = TestArray::Filled(bf16, m * n, 77);
    const cuda::DeviceMemory rows = Upload(std::vector<int32_t>{static_cast<int32_t>(valid)});
    const SwiGluParams p = {.m = m,
                            .n = n,
                            .ld = 2 * n,
                            .gate = both,
                            .up = Array(both).At(n),
                            .valid_rows = rows.as<int32_t>()};
    std::vector<double> gate(m * n), up(m * n), want(m * n), dgate(m * n), dup(m * n);
    for (int64_t i = 0; i < m * n; ++i) {
      gate[i] = both.values[i / n * 2 * n + i % n];
      up[i] = both.values[i / n * 2 * n + n + i % n];
    }
    train::SwiGlu<double>(gate.data(), up.data(), want.data(), m * n, pool_);
    train::SwiGluGradient<double>(gate.data(), up.data(), dout.values.data(), dgate.data(),
                                  dup.data(), m * n, pool_);
    std::fill(want.begin() + valid * n, want.end(), 77.0);
    std::vector<double> want_both = both.values;
    for (int64_t i = 0; i < valid * n; ++i) {
      want_both[i / n * 2 * n + i % n] = dgate[i];
      want_both[i / n * 2 * n + n + i % n] = dup[i];
    }
    SwiGlu(p, out, nullptr);
    ExpectClose(out, want, 2e-6, "output");
    SwiGluGradient(p, dout, both, Array(both).At(n), again, nullptr);
    ExpectClose(both, want_both, 2e-6, "gradients in place of gate and up");
    ExpectClose(again, want, 2e-6, "output that is computed again");
  }
}

TEST_F(TrainRows, AddAndConvertTakeAnyCountAndFormat) {
  for (const int64_t count : {0, 1, 7, 1028, 5001})
    for (const bool from : {false, true})
      for (const bool to : {false, true}) {
        const TestArray x = TestArray::Random(from, count + 1, random_),
                        y = TestArray::Random(to, count + 1, random_),
                        z = TestArray::Filled(to, count + 1, 77);
        // From the second element on: not aligned.
        for (const int64_t first : {0, 1}) {
          const TestArray sum(to, y.values);
          Add(Array(sum).At(first), ConstArray(x).At(first), count, nullptr);
          Convert(ConstArray(x).At(first), Array(z).At(first), count, nullptr);
          std::vector<double> want = y.values, copy = z.Read();
          for (int64_t i = first; i < first + count; ++i) {
            want[i] += x.values[i];
            copy[i] = to ? ToFloat(ToBF16(static_cast<float>(x.values[i]))) : x.values[i];
          }
          ExpectClose(sum, want, 1e-6, "sum");
          EXPECT_EQ(z.Read(), copy);
        }
      }
}

TEST_F(TrainRows, CopyRowsKeepsOtherColumns) {
  const int64_t m = 11, n = 12;
  const TestArray from = TestArray::Random(false, m * 20, random_),
                  to = TestArray::Random(true, m * 16, random_);
  CopyRows(from, 20, to, 16, m, n, true, nullptr);
  std::vector<double> want = to.values;
  for (int64_t t = 0; t < m; ++t)
    for (int64_t i = 0; i < n; ++i) want[t * 16 + i] += from.values[t * 20 + i];
  ExpectClose(to, want, 1e-6, "rows");
}

TEST_F(TrainRows, EmbeddingGradientAddsRowsOfATokenInOrder) {
  for (const bool bf16 : {false, true}) {
    const int64_t m = 150, vocab = 20, width = 44;
    std::vector<int32_t> ids(m);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % vocab / 2 * 2);
    const TestArray table = TestArray::Random(bf16, vocab * width, random_),
                    out = TestArray::Filled(bf16, m * width, 77),
                    dout = TestArray::Random(bf16, m * width, random_),
                    dtable = TestArray::Random(false, vocab * width, random_);
    const cuda::DeviceMemory on_device = Upload(ids);
    Embed(on_device.as<int32_t>(), m, table, width, out, nullptr);
    std::vector<double> want(m * width);
    train::Embed<double>(ids, table.values.data(), width, want.data(), pool_);
    EXPECT_EQ(out.Read(), want);

    const TokenOrder order = OrderByToken(ids);
    const cuda::DeviceMemory rows = Upload(order.rows), begins = Upload(order.begins),
                             tokens = Upload(order.tokens);
    EmbedGradient({.rows = rows.as<int32_t>(),
                   .begins = begins.as<int32_t>(),
                   .tokens = tokens.as<int32_t>(),
                   .distinct = std::ssize(order.tokens),
                   .width = width,
                   .dout = dout,
                   .dtable = dtable.floats()},
                  nullptr);
    // The sums of the CPU in float32 have the same order, so the bits are equal.
    std::vector<float> sums(dtable.values.begin(), dtable.values.end());
    const std::vector<float> gradients(dout.values.begin(), dout.values.end());
    train::EmbedGradient<float>(ids, gradients.data(), width, sums.data(), pool_);
    EXPECT_EQ(dtable.Read(), std::vector<double>(sums.begin(), sums.end()));
  }
  EXPECT_EQ(OrderByToken({}).begins, std::vector<int32_t>{0});
}

TEST_F(TrainRows, LatentKeysShareTheRotatedPart) {
  const int64_t m = 13, heads = 3, nope = 8, rope = 4, value = 12, lora = 16;
  const LatentKeysParams p = {
      .m = m, .heads = heads, .nope = nope, .rope = rope, .value = value, .lora = lora};
  const TestArray kv = TestArray::Random(true, m * heads * (nope + value), random_),
                  latent = TestArray::Random(true, m * (lora + rope), random_),
                  k = TestArray::Filled(true, m * heads * (nope + rope), 77),
                  dk = TestArray::Random(true, m * heads * (nope + rope), random_);
  JoinLatentKeys(p, kv, latent, k, nullptr);
  std::vector<double> want(k.size()), dkv = kv.values, dlatent = latent.values;
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t c = 0; c < rope; ++c) dlatent[t * (lora + rope) + lora + c] = 0;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t key = (t * heads + h) * (nope + rope), own = (t * heads + h) * (nope + value);
      for (int64_t c = 0; c < nope; ++c) {
        want[key + c] = kv.values[own + c];
        dkv[own + c] = dk.values[key + c];
      }
      for (int64_t c = 0; c < rope; ++c) {
        want[key + nope + c] = latent.values[t * (lora + rope) + lora + c];
        dlatent[t * (lora + rope) + lora + c] += dk.values[key + nope + c];
      }
    }
  }
  EXPECT_EQ(k.Read(), want);
  SplitLatentKeys(p, dk, kv, latent, nullptr);
  EXPECT_EQ(kv.Read(), dkv);
  ExpectClose(latent, dlatent, 1e-6, "shared parts");
}

}  // namespace
}  // namespace switchyard::train::gpu
