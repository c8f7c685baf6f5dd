#include "kernels/cuda/attention/attention.h"

#include <gtest/gtest.h>

#include "kernels/cuda/attention/attention_testing.h"

namespace switchyard::cuda {
namespace {

using kernels::Random;
using kernels::SameBits;

class CudaAttentionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
    UseDevice(0);
  }
};

// The float32 kernels agree to float32 rounding, tensor cores to bfloat16 rounding of
// probabilities.
double Tolerance(bool exact) { return exact ? 2e-5 : 1e-2; }

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, double tolerance,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(double{got[i]} - want[i]);
    if (!(error <= worst)) worst = error, at = i;  // NaN counts
  }
  EXPECT_LE(worst, tolerance) << what << " at " << at << ": " << got[at] << ", want " << want[at];
}

std::string Describe(const AttentionShape& s) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " heads of " +
         std::to_string(s.head_dim) + " and " + std::to_string(s.out_dim()) + ", pages of " +
         std::to_string(s.page_size) + ", window " + std::to_string(s.window) + ", chunks of " +
         std::to_string(s.chunk) + (s.sinks ? ", sinks" : "") + ", type " +
         std::string(Name(s.dtype)) + (s.scales ? " with scales" : "");
}

AttentionShape RandomShape(Random& random) {
  AttentionShape shape;
  shape.kv_heads = random.Pick<int64_t>({1, 2, 3});
  shape.heads = shape.kv_heads * random.Pick<int64_t>({1, 2, 4, 5, 8, 16});
  shape.head_dim = random.Pick<int64_t>({64, 80, 96, 128, 192, 64, 128, 256});
  shape.page_size = random.Pick<int32_t>({1, 16, 64, 48});
  shape.dtype = random.Pick({DType::kF32, DType::kBF16, DType::kF16, DType::kBF16, DType::kF8E4M3});
  shape.scales = shape.dtype == DType::kF8E4M3 && random.Below(2) == 0;
  shape.window = random.Pick<int32_t>({0, 0, 1, 50, 300});
  if (shape.window == 0) shape.chunk = random.Pick<int32_t>({0, 1, 50, 64, 260});
  shape.sinks = random.Below(2) == 0;
  if (shape.head_dim == 192 || random.Below(4) == 0)
    shape.value_dim = random.Pick<int64_t>({128, 128, 4, 40, 64, 200});
  shape.value_scale = random.Pick({1.0f, 1.0f, 0.707f, -0.5f});
  return shape;
}

TEST_F(CudaAttentionTest, MatchesReference) {
  Random random(1);
  for (int i = 0; i < 40; ++i) {
    const AttentionShape shape = RandomShape(random);
    const AttentionSequences sequences(random, shape, {1, 70, 333, 600});
    const std::vector<AttentionChunk> chunks = {{.sequence = 2, .begin = 332, .end = 333},
                                                {.sequence = 0, .begin = 0, .end = 1},
                                                {.sequence = 1, .begin = 0, .end = 70},
                                                {.sequence = 3, .begin = 597, .end = 600},
                                                {.sequence = 3, .begin = 250, .end = 290}};
    const std::vector<float> want = sequences.Reference(chunks);
    for (const bool exact : {true, false}) {
      ExpectNear(sequences.Run(chunks, exact, kAttentionScratchBytes, 2), want, Tolerance(exact),
                 Describe(shape) + (exact ? ", exact" : ""));
    }
  }
}

TEST_F(CudaAttentionTest, DecodingMatchesReference) {
  Random random(2);
  for (int i = 0; i < 20; ++i) {
    AttentionShape shape = RandomShape(random);
    shape.dtype = i % 2 == 0 ? DType::kBF16 : DType::kF8E4M3;
    shape.scales = i % 4 == 3;
    const AttentionSequences sequences(random, shape, {1, 64, 65, 256, 512, 513, 900, 1100});
    std::vector<AttentionChunk> chunks;
    for (const int32_t length : {1100, 900, 513, 512, 256, 65, 64, 1})
      chunks.push_back({static_cast<int>(7 - chunks.size()), length - 1, length});
    const std::vector<float> want = sequences.Reference(chunks);
    for (const bool exact : {true, false})
      ExpectNear(sequences.Run(chunks, exact), want, Tolerance(exact), Describe(shape));
  }
}

TEST_F(CudaAttentionTest, PromptsMatchReference) {
  Random random(8);
  for (const AttentionShape& shape :
       {AttentionShape{.heads = 8, .kv_heads = 1, .head_dim = 128},
        AttentionShape{.heads = 2, .kv_heads = 1, .head_dim = 64, .window = 90, .sinks = true},
        AttentionShape{.heads = 5, .kv_heads = 1, .head_dim = 128, .chunk = 130},
        AttentionShape{.heads = 2, .kv_heads = 2, .head_dim = 64, .chunk = 516},
        AttentionShape{
            .heads = 16, .kv_heads = 1, .head_dim = 192, .value_dim = 128, .value_scale = 0.707f},
        AttentionShape{.heads = 8,
        .kv_heads = 2,
        .head_dim = 192,
        .window = 128,
        .sinks = true,
        .value_dim = 128},
        AttentionShape{.heads = 16, .kv_heads = 2, .head_dim = 256},
        AttentionShape{.heads = 3, .kv_heads = 1, .head_dim = 256, .window = 90, .sinks = true},
        AttentionShape{.heads = 8,
        .kv_heads = 2,
        .head_dim = 128,
        .dtype = DType::kF8E4M3,
        .sinks = true,
        .scales = true},
        AttentionShape{.heads = 2,
        .kv_heads = 1,
        .head_dim = 64,
        .dtype = DType::kF8E4M3,
        .window = 90,
        .scales = true},
        AttentionShape{
            .heads = 16, .kv_heads = 2, .head_dim = 256, .dtype = DType::kF8E4M3, .scales = true},
        AttentionShape{
            .heads = 40, .head_dim = 576, .rope = 64, .dtype = DType::kF8E4M3, .scales = true},
        AttentionShape{.heads = 40, .head_dim = 576, .rope = 64}}) {
    const AttentionSequences sequences(random, shape, {150, 530});
    // The last rows are in one chunk of 130 positions, which begins within a block of keys.
    const std::vector<AttentionChunk> chunks = {{0, 0, 150}, {1, 500, 530}, {1, 470, 510}};
    ExpectNear(sequences.Run(chunks, false), sequences.Reference(chunks), Tolerance(false),
               Describe(shape));
  }
}

// Codes are exact in bfloat16.
TEST_F(CudaAttentionTest, CodesHaveTheBitsOfTheirNumbersInBFloat16) {
  Random random(14);
  constexpr DType kCodes = DType::kF8E4M3;
  for (const AttentionShape& shape :
       {AttentionShape{.heads = 32, .kv_heads = 4, .head_dim = 128, .dtype = kCodes},
        AttentionShape{.heads = 8,
        .kv_heads = 2,
        .head_dim = 128,
        .page_size = 64,
        .dtype = kCodes,
        .sinks = true},
        AttentionShape{.heads = 16,
        .kv_heads = 2,
        .head_dim = 64,
        .page_size = 1,
        .dtype = kCodes,
        .window = 100},
        AttentionShape{
            .heads = 40, .kv_heads = 2, .head_dim = 64, .page_size = 48, .dtype = kCodes},
        AttentionShape{.heads = 16,
        .kv_heads = 2,
        .head_dim = 192,
        .dtype = kCodes,
        .window = 128,
        .sinks = true,
        .value_dim = 128,
        .value_scale = 0.707f},
        AttentionShape{.heads = 32, .kv_heads = 2, .head_dim = 256, .dtype = kCodes, .chunk = 300},
        AttentionShape{.heads = 16, .head_dim = 576, .rope = 64, .dtype = kCodes},
        AttentionShape{
            .heads = 20, .head_dim = 576, .rope = 64, .page_size = 64, .dtype = kCodes}}) {
    const AttentionSequences codes(random, shape, {1, 90, 300, 1100, 1500});
    const AttentionSequences numbers = codes.InBFloat16OfCodes(random);
    const std::vector<std::vector<AttentionChunk>> batches = {
        {{0, 0, 1}, {1, 89, 90}, {2, 299, 300}, {4, 1499, 1500}},
        {{4, 1499, 1500}},
        {{1, 0, 90}, {3, 1000, 1100}, {0, 0, 1}, {2, 0, 300}},
        {{3, 0, 1100}},
        {{2, 297, 300}, {4, 1440, 1500}, {1, 88, 90}}};
    for (size_t i = 0; i < batches.size(); ++i) {
      for (const size_t scratch : {kAttentionScratchBytes, size_t{0}}) {
        EXPECT_TRUE(SameBits(codes.Run(batches[i], false, scratch, 1),
                             numbers.Run(batches[i], false, scratch, 1)))
            << Describe(shape) << ", batch " << i << ", scratch " << scratch;
      }
      if (!codes.HasBFloat16Output()) continue;
      EXPECT_TRUE(SameBits(codes.RunToBFloat16(batches[i]), numbers.RunToBFloat16(batches[i])))
          << Describe(shape) << ", batch " << i << " in bfloat16";
    }
  }
}

TEST_F(CudaAttentionTest, BFloat16OutputIsTheRoundedOutput) {
  Random random(11);
  for (const int64_t head_dim : {64, 128}) {
    const AttentionShape shape = {
        .heads = 8, .kv_heads = 2, .head_dim = head_dim, .sinks = head_dim == 64};
    const AttentionSequences sequences(random, shape, {1, 200, 300, 700, 4900});
    if (!sequences.HasBFloat16Output()) GTEST_SKIP() << "requires Hopper";
    const std::vector<std::vector<AttentionChunk>> batches = {
        {{0, 0, 1}, {1, 199, 200}, {3, 699, 700}, {4, 4899, 4900}},
        {{1, 0, 200}, {2, 250, 300}, {4, 4850, 4900}}};
    for (const std::vector<AttentionChunk>& chunks : batches) {
      std::vector<float> want = sequences.Run(chunks, false);
      for (float& x : want) x = ToFloat(ToBF16(x));
      const std::vector<float> got = sequences.RunToBFloat16(chunks);
      ASSERT_EQ(got.size(), want.size());
      EXPECT_TRUE(SameBits(got.data(), want.data(), static_cast<int64_t>(got.size())));
    }
  }
}

// In large batches, one block processes all keys of a short sequence.
TEST_F(CudaAttentionTest, LargeBatchesHaveTheBitsOfSingleSequences) {
  Random random(12);
  const AttentionShape shape = {.heads = 16, .kv_heads = 4, .head_dim = 128};
  const std::vector<int32_t> lengths = {40, 256, 700, 1100, 4900};
  const AttentionSequences sequences(random, shape, lengths);
  const int64_t width = sequences.OutWidth();
  std::vector<std::vector<float>> alone;
  for (int s = 0; s < 5; ++s)
    alone.push_back(sequences.Run({{s, lengths[s] - 1, lengths[s]}}, false));
  std::vector<AttentionChunk> chunks;
  for (int i = 0; i < 600; ++i) {
    const int s = i % 5;
    chunks.push_back({s, lengths[s] - 1, lengths[s]});
  }
  const std::vector<float> all = sequences.Run(chunks, false);
  for (int i = 0; i < 600; ++i)
    ASSERT_TRUE(SameBits(all.data() + i * width, alone[i % 5].data(), width)) << i;
}

// Batches of short sequences, in which a block processes many tiles. Each row has the bits that it
// has in a call for its whole sequence.
void ExpectBitsOfPrompts(const AttentionShape& shape, Random& random) {
  std::vector<int32_t> lengths = {1, 64, 65, 257, 700};
  while (lengths.size() < 20) lengths.push_back(1 + static_cast<int32_t>(random.Below(700)));
  const AttentionSequences sequences(random, shape, lengths);
  const int64_t width = sequences.OutWidth();
  std::vector<std::vector<float>> prompts;
  for (int s = 0; s < 20; ++s) prompts.push_back(sequences.Run({{s, 0, lengths[s]}}, false));
  const bool two_rows = 2 * shape.heads / shape.kv_heads <= 16;  // they fit in a decode tile
  for (const int batch : {1, 2, 3, 8, 31, 32, 64, 100, 128, 200, 256}) {
    std::vector<AttentionChunk> chunks;
    std::vector<float> want;
    const bool decode = random.Below(3) > 0 || !two_rows;
    for (int i = 0; i < batch; ++i) {
      const int s = static_cast<int>(random.Below(20));
      const int32_t end = 1 + static_cast<int32_t>(random.Below(lengths[s]));
      const int32_t begin = std::max(0, end - (decode || random.Below(2) == 0 ? 1 : 2));
      chunks.push_back({s, begin, end});
      want.insert(want.end(), prompts[s].data() + begin * width, prompts[s].data() + end * width);
    }
    const std::string what = Describe(shape) + ", batch " + std::to_string(batch);
    const size_t scratch = random.Below(4) == 0 ? 0 : kAttentionScratchBytes;
    const int32_t gap = random.Pick<int32_t>({0, 0, 1});  // 1: empty sequences too
    ASSERT_TRUE(SameBits(sequences.Run(chunks, false, scratch, gap), want)) << what;
    if (!sequences.HasBFloat16Output()) continue;
    for (float& x : want) x = ToFloat(ToBF16(x));
    ASSERT_TRUE(SameBits(sequences.RunToBFloat16(chunks), want)) << what << " in bfloat16";
  }
}

TEST_F(CudaAttentionTest, ManyShortSequencesHaveTheBitsOfTheirPrompts) {
  Random random(13);
  for (const AttentionShape& shape :
       {AttentionShape{.heads = 32, .kv_heads = 4, .head_dim = 128},
        AttentionShape{.heads = 16, .kv_heads = 2, .head_dim = 128, .page_size = 64, .sinks = true},
        AttentionShape{.heads = 8, .kv_heads = 1, .head_dim = 64, .page_size = 1, .window = 100},
        AttentionShape{.heads = 16,
        .kv_heads = 2,
        .head_dim = 64,
        .page_size = 128,
        .window = 130,
        .sinks = true},
        AttentionShape{.heads = 9, .kv_heads = 3, .head_dim = 128, .page_size = 48, .window = 300},
        AttentionShape{.heads = 16, .head_dim = 64, .page_size = 32},
        AttentionShape{.heads = 16,
        .kv_heads = 2,
        .head_dim = 128,
        .page_size = 64,
        .dtype = DType::kF8E4M3,
        .scales = true},
        AttentionShape{.heads = 8,
        .kv_heads = 1,
        .head_dim = 64,
        .page_size = 1,
        .dtype = DType::kF8E4M3,
        .window = 100,
        .sinks = true},
        AttentionShape{.heads = 16, .kv_heads = 2, .head_dim = 256}})
    ExpectBitsOfPrompts(shape, random);
}

// Compares one call for a whole sequence with calls for chunks of it. The chunks have several sizes
// and other cache pages. They run together with other sequences, with and without scratch memory.
void ExpectSameBitsInAnyChunks(const AttentionShape& shape, bool exact, Random& random) {
  const int32_t length = shape.rope > 0 ? 1100 : 700;  // several splits
  AttentionSequences sequences(random, shape, {length, 90, 270});
  const int64_t width = sequences.OutWidth();
  const std::vector<float> whole = sequences.Run({{0, 0, length}}, exact);
  for (const int32_t chunk : {1, 7, 64, 256, length}) {
    sequences.LayOut(random);
    for (int32_t begin = 0; begin < length; begin += chunk) {
      // Runs all large chunks. Runs small chunks only at block and split boundaries, and some at
      // random.
      const int32_t end = std::min(begin + chunk, length);
      if (chunk < 64 && begin % 64 > 2 && end % 64 > 2 && random.Below(40) != 0) continue;
      for (const size_t scratch : {kAttentionScratchBytes, size_t{0}}) {
        std::vector<AttentionChunk> chunks = {{0, begin, end}};
        if (random.Below(2) == 0) chunks.push_back({1, 0, 90});
        if (random.Below(2) == 0) chunks.insert(chunks.begin(), {2, 269, 270});
        const int64_t skip = chunks[0].sequence == 2 ? 1 : 0;
        const std::vector<float> part =
            sequences.Run(chunks, exact, scratch, random.Pick<int32_t>({0, 1}));
        ASSERT_TRUE(SameBits(part.data() + skip * width, whole.data() + begin * width,
                             (end - begin) * width))
            << Describe(shape) << ", exact " << exact << ", rows " << begin << " to " << end
            << ", scratch " << scratch;
      }
    }
  }
}

TEST_F(CudaAttentionTest, ChunksBatchesAndScratchGiveTheSameBits) {
  Random random(3);
  for (const AttentionShape& shape :
       {AttentionShape{.heads = 8, .kv_heads = 1, .head_dim = 128},
        AttentionShape{.heads = 4, .kv_heads = 2, .head_dim = 64, .page_size = 1, .window = 100},
        AttentionShape{.heads = 40, .kv_heads = 2, .head_dim = 64, .sinks = true},
        AttentionShape{.heads = 10, .kv_heads = 2, .head_dim = 128, .window = 300, .sinks = true},
        AttentionShape{.heads = 4, .kv_heads = 2, .head_dim = 64, .page_size = 1, .chunk = 100},
        AttentionShape{.heads = 10, .kv_heads = 2, .head_dim = 128, .chunk = 300, .sinks = true},
        AttentionShape{.heads = 16,
        .kv_heads = 2,
        .head_dim = 192,
        .window = 128,
        .sinks = true,
        .value_dim = 128,
        .value_scale = 0.707f},
        AttentionShape{.heads = 32, .kv_heads = 2, .head_dim = 192, .value_dim = 128},
        AttentionShape{.heads = 16, .kv_heads = 2, .head_dim = 256, .page_size = 16},
        AttentionShape{.heads = 40, .kv_heads = 2, .head_dim = 256, .window = 200, .sinks = true},
        AttentionShape{.heads = 10,
        .kv_heads = 2,
        .head_dim = 128,
        .dtype = DType::kF8E4M3,
        .window = 300,
        .sinks = true,
        .scales = true},
        AttentionShape{
            .heads = 40, .kv_heads = 2, .head_dim = 64, .page_size = 1, .dtype = DType::kF8E4M3},
        AttentionShape{.heads = 3, .kv_heads = 3, .head_dim = 80, .dtype = DType::kF16}}) {
    ExpectSameBitsInAnyChunks(shape, false, random);
    ExpectSameBitsInAnyChunks(shape, true, random);
  }
}

TEST_F(CudaAttentionTest, PartsThatFindNoRoomGiveTheSameBits) {
  Random random(4);
  const AttentionShape shape = {.heads = 8, .kv_heads = 2, .head_dim = 128};
  const AttentionSequences sequences(random, shape, {1500, 600, 1100});
  const std::vector<AttentionChunk> chunks = {{0, 1499, 1500}, {1, 599, 600}, {2, 1099, 1100}};
  const std::vector<float> want = sequences.Run(chunks, false);
  // The sequences have 3, 2 and 3 splits of two key-value heads: 6, 4 and 6 slots. These numbers of
  // scratch slots suffice for none, some or all of the sequences.
  for (const size_t slots : {1, 5, 6, 9, 10, 15, 16, 17})
    EXPECT_TRUE(SameBits(want, sequences.Run(chunks, false, slots * 16 * 130 * sizeof(float))))
        << slots;
}

TEST_F(CudaAttentionTest, NothingToDo) {
  Random random(5);
  const AttentionSequences sequences(random, {}, {4});
  EXPECT_TRUE(sequences.Run({}, true).empty());
  EXPECT_TRUE(sequences.Run({}, false).empty());
  EXPECT_TRUE(sequences.Run({{0, 4, 4}}, false).empty());
  EXPECT_TRUE(sequences.Run({{0, 4, 4}}, false, kAttentionScratchBytes, 3).empty());
}

TEST_F(CudaAttentionTest, LatentMatchesReference) {
  Random random(6);
  for (const AttentionShape& shape :
       {AttentionShape{.heads = 3, .head_dim = 40, .rope = 8, .dtype = DType::kF32},
        AttentionShape{.heads = 20, .head_dim = 144, .rope = 16, .page_size = 1},
        AttentionShape{.heads = 5, .head_dim = 576, .rope = 64, .dtype = DType::kF16},
        AttentionShape{.heads = 1, .head_dim = 576, .rope = 64},
        AttentionShape{.heads = 16, .head_dim = 576, .rope = 64, .page_size = 64},
        AttentionShape{.heads = 20, .head_dim = 576, .rope = 64, .page_size = 1},
        AttentionShape{
            .heads = 16, .head_dim = 576, .rope = 64, .dtype = DType::kF8E4M3, .scales = true},
        AttentionShape{.heads = 5, .head_dim = 40, .rope = 8, .dtype = DType::kF8E4M3},
        AttentionShape{.heads = 128, .head_dim = 576, .rope = 64, .page_size = 64}}) {
    const AttentionSequences sequences(random, shape, {1, 70, 1100});
    for (const std::vector<AttentionChunk>& chunks :
         {std::vector<AttentionChunk>{{2, 1099, 1100}, {0, 0, 1}, {1, 69, 70}},
          std::vector<AttentionChunk>{{0, 0, 1}, {2, 1094, 1100}, {1, 0, 9}}}) {
      const std::vector<float> want = sequences.Reference(chunks);
      for (const bool exact : {true, false})
        ExpectNear(sequences.Run(chunks, exact), want, Tolerance(exact),
                   Describe(shape) + (exact ? ", exact" : ""));
    }
  }
}

TEST_F(CudaAttentionTest, LatentChunksGiveTheSameBits) {
  Random random(7);
  for (const int64_t heads : {16, 128}) {
    const AttentionShape shape = {.heads = heads, .head_dim = 576, .rope = 64};
    ExpectSameBitsInAnyChunks(shape, false, random);
  }
  ExpectSameBitsInAnyChunks(
      {.heads = 16, .head_dim = 576, .rope = 64, .dtype = DType::kF8E4M3, .scales = true}, false,
      random);
  ExpectSameBitsInAnyChunks({.heads = 9, .head_dim = 576, .rope = 64}, true, random);
}

}  // namespace
}  // namespace switchyard::cuda
