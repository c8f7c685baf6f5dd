// Attention in a chain of early launches. The attention kernel copies keys of earlier steps while
// the kernels that store the keys of this step may still run.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cache_rows.h"
#include "kernels/cuda/device/device_testing.h"
#include "kernels/fused_ops.h"

namespace switchyard::kernels {
namespace {

constexpr int32_t kPage = 16;
constexpr int64_t kHidden = 2048, kHeads = 8, kKvHeads = 2;

// Lengths at the first step: sequence i has `length[i]` keys of earlier steps and `rows[i]` new
// rows.
struct Lengths {
  std::vector<int32_t> length, rows;
  int32_t pages_each = 64;  // pages of a sequence
};

// One layer's attention, from its input rows to the output projection.
class AttentionLayer {
 public:
  AttentionLayer(Device& device, Random& random, int64_t dim, DType cache = DType::kBF16)
      : device_(device),
        dim_(dim),
        cache_(cache),
        qkv_(device.Place(random.Weight(WeightFormat::kBF16, Width(), kHidden, 0, 1, 0))),
        o_(device.Place(random.Weight(WeightFormat::kBF16, kHidden, kHeads * dim, 0, 1, 0))),
        norm_(device, random.Normal(dim)),
        cos_sin_(device, random.Normal(kPositions * dim)) {}

  // Decodes `steps` steps. Returns the output rows of all steps, followed by the bits of the cache.
  // With `waits`, every op ends before the next one begins; otherwise steps are captured as graph
  // `key`.
  std::vector<float> Decode(const Lengths& lengths, int steps, uint64_t key, bool waits,
                            uint64_t seed) {
    Random random(seed);
    const auto num_pages = static_cast<int32_t>(lengths.length.size()) * lengths.pages_each;
    const std::vector<int32_t> pages = random.Shuffled(num_pages);
    const int64_t rows = Sum(lengths.rows), slots = int64_t{num_pages} * kPage;
    // NaN where nothing is stored, in e4m3 −480.
    std::vector<uint8_t> cache(slots * CacheRowBytes(cache_, kKvHeads * dim_), 0xff);
    FillOldKeys(lengths, pages, random, cache);
    const DeviceVector k(device_, cache), v(device_, cache);
    const DeviceVector x(device_, std::vector<uint16_t>(rows * kHidden));
    const DeviceVector qkv(device_, std::vector<float>(rows * Width()));
    const DeviceVector attended(device_, std::vector<uint16_t>(rows * kHeads * dim_));
    const DeviceVector y(device_, std::vector<float>(rows * kHidden));
    const DeviceVector positions(device_, std::vector<int32_t>(rows));
    const DeviceVector to(device_, std::vector<int32_t>(rows));
    const auto sequences = device_.MakeSequences();
    std::vector<float> results;
    for (int step = 0; step < steps; ++step) {
      std::vector<int32_t> at, slot;
      sequences->Set(Spans(lengths, step, pages, at, slot), kPage);
      std::vector<uint16_t> input;
      for (const float value : random.Normal(rows * kHidden)) input.push_back(ToBF16(value).bits);
      device_.CopyIn(x.data(), input.data(), input.size() * sizeof(uint16_t));
      device_.CopyIn(positions.data(), at.data(), at.size() * sizeof(int32_t));
      device_.CopyIn(to.data(), slot.data(), slot.size() * sizeof(int32_t));
      const auto end_op = [&] {
        if (waits) device_.Synchronize();
      };
      device_.Run(waits ? 0 : key, [&] {
        FusedOps& ops = *device_.fused();
        ops.LinearOfRoundedRows({.w = qkv_, .y = qkv.data(), .ldy = Width(), .m = rows},
                                {.form = RoundedForm::kBFloat16, .data = x.data()});
        end_op();
        ops.NormRopeStoreKv({.qkv = qkv.data(),
                             .q_norm = norm_.data(),
                             .k_norm = norm_.data(),
                             .m = rows,
                             .heads = kHeads,
                             .kv_heads = kKvHeads,
                             .head_dim = dim_,
                             .rotary_dim = dim_,
                             .positions = positions.data(),
                             .cos_sin = cos_sin_.data(),
                             .slots = to.data(),
                             .k_cache = k.data(),
                             .v_cache = v.data(),
                             .kv_dtype = cache_,
                             .bf16_queries = true});
        end_op();
        device_.Attention({.q = qkv.data(),
                           .ldq = Width(),
                           .bf16_queries = true,
                           .k_cache = k.data(),
                           .v_cache = v.data(),
                           .kv_dtype = cache_,
                           .heads = kHeads,
                           .kv_heads = kKvHeads,
                           .head_dim = dim_,
                           .scale = 1.0f / std::sqrt(static_cast<float>(dim_)),
                           .ldo = kHeads * dim_,
                           .bf16_out = attended.data()},
                          *sequences);
        end_op();
        ops.LinearOfRoundedRows({.w = o_, .y = y.data(), .ldy = kHidden, .m = rows},
                                {.form = RoundedForm::kBFloat16, .data = attended.data()});
        end_op();
      });
      const std::vector<float> out = y.Read();
      results.insert(results.end(), out.begin(), out.end());
    }
    for (const auto* stored : {&k, &v})
      for (const uint8_t bits : stored->Read()) results.push_back(bits);
    return results;
  }

 private:
  static constexpr int32_t kPositions = 1024;

  int64_t Width() const { return (kHeads + 2 * kKvHeads) * dim_; }
  static int64_t Sum(const std::vector<int32_t>& values) {
    int64_t sum = 0;
    for (const int32_t value : values) sum += value;
    return sum;
  }
  // Pages of sequence i are the ids from pages_each · i on.
  static const int32_t* PagesOf(const Lengths& lengths, const std::vector<int32_t>& pages,
                                size_t i) {
    return pages.data() + lengths.pages_each * i;
  }
  static int32_t SlotOf(const Lengths& lengths, const std::vector<int32_t>& pages, size_t i,
                        int32_t position) {
    return PagesOf(lengths, pages, i)[position / kPage] * kPage + position % kPage;
  }
  void FillOldKeys(const Lengths& lengths, const std::vector<int32_t>& pages, Random& random,
                   std::vector<uint8_t>& cache) const {
    const int64_t width = kKvHeads * dim_, bytes = CacheRowBytes(cache_, width);
    for (size_t i = 0; i < lengths.length.size(); ++i) {
      for (int32_t position = 0; position < lengths.length[i]; ++position) {
        const std::vector<float> row = random.Normal(width);
        WriteCacheRow(cache_, row.data(), width,
                      cache.data() + SlotOf(lengths, pages, i, position) * bytes);
      }
    }
  }
  static std::vector<SequenceSpan> Spans(const Lengths& lengths, int step,
                                         const std::vector<int32_t>& pages,
                                         std::vector<int32_t>& positions,
                                         std::vector<int32_t>& slots) {
    std::vector<SequenceSpan> spans;
    for (size_t i = 0; i < lengths.length.size(); ++i) {
      const int32_t rows = lengths.rows[i], old = lengths.length[i] + step * rows;
      spans.push_back({.row_begin = static_cast<int32_t>(positions.size()),
                       .rows = rows,
                       .kv_len = old + rows,
                       .pages = PagesOf(lengths, pages, i)});
      for (int32_t position = old; position < old + rows; ++position) {
        positions.push_back(position);
        slots.push_back(SlotOf(lengths, pages, i, position));
      }
    }
    return spans;
  }

  Device& device_;
  const int64_t dim_;
  const DType cache_;
  const WeightView qkv_, o_;
  const DeviceVector<float> norm_, cos_sin_;
};

using FusedAttentionTest = DeviceTest;

TEST_F(FusedAttentionTest, EarlyLaunchChangesNoBit) {
  if (!cuda::IsHopper()) GTEST_SKIP() << "needs a Hopper GPU: only there kernels launch early";
  const std::vector<Lengths> batches = {
      {{0}, {1}},
      {{639}, {1}},
      {{254}, {1}},
      {{0, 61, 62, 63, 126, 250, 509, 1000}, {1, 1, 1, 1, 1, 1, 1, 1}},
      {{0, 61, 126, 255, 600, 900}, {1, 3, 1, 2, 1, 7}},
  };
  uint64_t key = 0;
  for (const DType cache : {DType::kBF16, DType::kF8E4M3}) {
    for (const int64_t dim : {64, 128}) {
      AttentionLayer layer(*fast_, random_, dim, cache);
      for (const Lengths& lengths : batches) {
        ++key;
        const std::vector<float> want = layer.Decode(lengths, 4, key, true, key);
        EXPECT_TRUE(SameBits(layer.Decode(lengths, 4, key, false, key), want))
            << Name(cache) << ", head size " << dim << ", batch " << key;
      }
    }
  }
}

// A block of the attention kernel then has several work items.
TEST_F(FusedAttentionTest, EarlyLaunchOfManySequencesChangesNoBit) {
  if (!cuda::IsHopper()) GTEST_SKIP() << "needs a Hopper GPU: only there kernels launch early";
  constexpr int32_t kSequences = 256, kPagesEach = 8;
  const std::unique_ptr<Device> device = MakeCudaDevice({.dtype = DType::kBF16,
                                                         .max_tokens = kSequences,
                                                         .max_sequences = kSequences,
                                                         .max_pages = kPagesEach});
  Lengths lengths = {.length = {}, .rows = {}, .pages_each = kPagesEach};
  for (int i = 0; i < kSequences; ++i) {
    lengths.length.push_back(static_cast<int32_t>(random_.Below(kPagesEach * kPage - 4)));
    lengths.rows.push_back(1);
  }
  AttentionLayer layer(*device, random_, 128);
  const std::vector<float> want = layer.Decode(lengths, 4, 1, true, 1);
  EXPECT_TRUE(SameBits(layer.Decode(lengths, 4, 1, false, 1), want));
}

}  // namespace
}  // namespace switchyard::kernels
