// Selection of keys by an index, and latent attention to the selected keys, on a GPU.
#include "kernels/cuda/attention/select_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "core/cuda/runtime.h"
#include "kernels/cache_rows.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/attention_testing.h"
#include "kernels/testing.h"

namespace switchyard::cuda {
namespace {

using kernels::Random;
using kernels::SameBits;

class CudaSelectKeysTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "no GPU";
    UseDevice(0);
  }
};

template <typename T>
DeviceMemory Upload(const std::vector<T>& from) {
  DeviceMemory memory(from.size() * sizeof(T) + 16);
  CopyToDevice(memory.data(), from.data(), from.size() * sizeof(T), "copy to the GPU");
  return memory;
}
template <typename T>
std::vector<T> Download(const DeviceMemory& memory, size_t count) {
  std::vector<T> values(count);
  Check(cudaMemcpy(values.data(), memory.data(), count * sizeof(T), cudaMemcpyDeviceToHost),
        "copy of the result");
  return values;
}

struct SparseShape {
  int64_t heads = 8, head_dim = 64, topk = 70;    // of the index
  int64_t latent_heads = 4, lora = 24, rope = 8;  // of attention
  int32_t page_size = 16;
  DType dtype = DType::kBF16;

  int64_t latent() const { return lora + rope; }
};

// The rows of a batch, and its sequence table in device memory. An empty sequence and a row of no
// sequence precede each chunk.
struct SparseBatch {
  static constexpr int32_t kMaxKeys = 2048;

  std::vector<int32_t> row_begin, rows, kv_len, pages, row_sequence;
  std::vector<int32_t> sequence, position;  // [rows of the batch]; sequence −1: none
  DeviceMemory memory;

  SparseBatch(const std::vector<std::vector<int32_t>>& pages_of, int32_t page_size,
              const std::vector<AttentionChunk>& chunks)
      : page_size_(page_size), max_pages_((kMaxKeys + page_size - 1) / page_size) {
    for (const AttentionChunk& chunk : chunks) {
      Add(-1, 0, 0, {});
      sequence.push_back(-1);
      position.push_back(0);
      row_sequence.push_back(-1);
      Add(chunk.sequence, chunk.begin, chunk.end, pages_of[chunk.sequence]);
    }
    std::vector<int32_t> all;
    for (const auto* column : {&row_begin, &rows, &kv_len, &pages, &row_sequence})
      all.insert(all.end(), column->begin(), column->end());
    memory = Upload(all);
  }

  int32_t num_rows() const { return static_cast<int32_t>(sequence.size()); }
  SequenceTable table() const {
    const auto count = std::ssize(rows);
    const auto* const at = memory.as<int32_t>();
    return {.row_begin = at,
            .rows = at + count,
            .kv_len = at + 2 * count,
            .pages = at + 3 * count,
            .row_sequence = at + (3 + max_pages_) * count,
            .num_sequences = static_cast<int32_t>(count),
            .num_rows = num_rows(),
            .max_pages = static_cast<int32_t>(max_pages_),
            .page_size = page_size_};
  }

 private:
  void Add(int32_t of, int32_t begin, int32_t end, const std::vector<int32_t>& own) {
    for (int32_t i = begin; i < end; ++i) {
      row_sequence.push_back(static_cast<int32_t>(rows.size()));
      sequence.push_back(of);
      position.push_back(i);
    }
    row_begin.push_back(num_rows() - (end - begin));
    rows.push_back(end - begin);
    kv_len.push_back(end);
    const auto used = static_cast<int64_t>(pages.size());
    pages.resize(used + max_pages_);
    std::copy_n(own.begin(), (end + page_size_ - 1) / page_size_, pages.begin() + used);
  }

  const int32_t page_size_;
  const int64_t max_pages_;
};

// Sequences with index keys and latents in paged caches.
struct SparseSequences {
  SparseShape shape;
  std::vector<int32_t> lengths;
  std::vector<std::vector<float>> q, weights, keys;  // of the index, [sequence][position, …]
  std::vector<std::vector<float>> latent_q, latents;
  std::vector<std::vector<int32_t>> pages;
  std::vector<char> key_cache, latent_cache;

  SparseSequences(Random& random, const SparseShape& of, std::vector<int32_t> of_lengths)
      : shape(of), lengths(std::move(of_lengths)) {
    const auto rounded = [&](int64_t count) {
      std::vector<float> x = random.Normal(count);
      for (float& value : x) value = ToFloat(ToBF16(value));
      return x;
    };
    for (const int32_t length : lengths) {
      q.push_back(rounded(length * shape.heads * shape.head_dim));
      weights.push_back(random.Normal(length * shape.heads));
      keys.push_back(random.Normal(length * shape.head_dim));
      latent_q.push_back(rounded(length * shape.latent_heads * shape.latent()));
      latents.push_back(random.Normal(length * shape.latent()));
    }
    LayOut(random);
  }

  // Assigns new pages, and fills the caches. Slots without a key are NaN.
  void LayOut(Random& random) {
    int32_t count = 2;
    for (const int32_t length : lengths) count += PagesOf(length);
    const std::vector<int32_t> order = random.Shuffled(count);
    const int32_t* next = order.data();
    pages.clear();
    for (const int32_t length : lengths) {
      const int32_t own = PagesOf(length);
      pages.emplace_back(next, next + own);
      next += own;
    }
    const int64_t slots = int64_t{count} * shape.page_size;
    Fill(keys, shape.head_dim, slots, key_cache);
    Fill(latents, shape.latent(), slots, latent_cache);
  }
  int32_t SlotOf(int32_t sequence, int32_t key) const {
    return pages[sequence][key / shape.page_size] * shape.page_size + key % shape.page_size;
  }

  // [rows of the batch, topk] the selected slots; −1 where nothing was written. `wave`: rows whose
  // scores fit in the scratch buffer.
  std::vector<int32_t> Select(const SparseBatch& batch, bool exact, int64_t wave = 100) const {
    return Download<int32_t>(SelectOn(batch, exact, wave), batch.num_rows() * shape.topk);
  }

  // [rows of the batch, heads, lora]; 77 where nothing was written. `sparse`: to selected keys.
  std::vector<float> Attend(const SparseBatch& batch, bool exact, bool sparse) const {
    const DeviceMemory selected = SelectOn(batch, exact, 100);
    return Latent(batch.table(), Gather(batch, latent_q, shape.latent_heads * shape.latent()),
                  latent_cache, sparse ? selected.as<int32_t>() : nullptr, exact);
  }
  // The row at `position` of a sequence, as the only row of a sequence with the keys in `slots`.
  std::vector<float> AttendTo(int32_t sequence, int32_t position, std::span<const int32_t> slots,
                              bool exact) const {
    const int64_t width = shape.latent_heads * shape.latent();
    const int64_t bytes = kernels::CacheRowBytes(shape.dtype, shape.latent());
    std::vector<char> compact;
    for (const int32_t slot : slots) {
      const auto from = latent_cache.begin() + slot * bytes;
      compact.insert(compact.end(), from, from + bytes);
    }
    const auto count = static_cast<int32_t>(slots.size());
    std::vector<int32_t> in_order(count);
    std::iota(in_order.begin(), in_order.end(), 0);
    const SparseBatch batch({in_order}, 1, {{0, count - 1, count}});
    std::vector<float> queries(2 * width);  // the first row has no sequence
    std::copy_n(latent_q[sequence].begin() + position * width, width, queries.begin() + width);
    std::vector<float> out = Latent(batch.table(), queries, compact, nullptr, exact);
    out.erase(out.begin(), out.begin() + OutWidth());
    return out;
  }
  int64_t OutWidth() const { return shape.latent_heads * shape.lora; }

 private:
  int32_t PagesOf(int32_t length) const { return (length + shape.page_size - 1) / shape.page_size; }
  void Fill(const std::vector<std::vector<float>>& rows, int64_t width, int64_t slots,
            std::vector<char>& cache) const {
    const int64_t bytes = kernels::CacheRowBytes(shape.dtype, width);
    cache.assign(slots * bytes, static_cast<char>(0xff));
    for (int32_t s = 0; s < std::ssize(lengths); ++s)
      for (int32_t key = 0; key < lengths[s]; ++key)
        kernels::WriteCacheRow(shape.dtype, rows[s].data() + key * width, width,
                               cache.data() + SlotOf(s, key) * bytes);
  }
  // The rows of the batch; ones for a row of no sequence.
  static std::vector<float> Gather(const SparseBatch& batch,
                                   const std::vector<std::vector<float>>& rows, int64_t width) {
    std::vector<float> all(batch.num_rows() * width, 1.0f);
    for (int32_t row = 0; row < batch.num_rows(); ++row)
      if (batch.sequence[row] >= 0)
        std::copy_n(rows[batch.sequence[row]].begin() + batch.position[row] * width, width,
                    all.begin() + row * width);
    return all;
  }
  DeviceMemory SelectOn(const SparseBatch& batch, bool exact, int64_t wave) const {
    const DeviceMemory queries = Upload(Gather(batch, q, shape.heads * shape.head_dim)),
                       factors = Upload(Gather(batch, weights, shape.heads)),
                       cache = Upload(key_cache);
    DeviceMemory selected = Upload(std::vector<int32_t>(batch.num_rows() * shape.topk, -1));
    const SequenceTable table = batch.table();
    const DeviceMemory scratch(wave * table.max_pages * table.page_size * sizeof(float));
    const Stream stream;
    SelectKeys({.q = queries.as<float>(),
                .ldq = shape.heads * shape.head_dim,
                .weights = factors.as<float>(),
                .cache = cache.data(),
                .kv_dtype = shape.dtype,
                .heads = shape.heads,
                .head_dim = shape.head_dim,
                .topk = shape.topk,
                .selected = selected.as<int32_t>()},
               table, exact, stream.get(), {scratch.data(), scratch.bytes()});
    stream.Synchronize();
    return selected;
  }
  std::vector<float> Latent(const SequenceTable& table, const std::vector<float>& queries,
                            const std::vector<char>& of_keys, const int32_t* selected,
                            bool exact) const {
    const DeviceMemory device_q = Upload(queries), cache = Upload(of_keys),
                       scratch(size_t{16} << 20);
    const size_t count = table.num_rows * OutWidth();
    const DeviceMemory out = Upload(std::vector<float>(count, 77.0f));
    const Stream stream;
    LatentAttention({.q = device_q.as<float>(),
                     .ldq = shape.latent_heads * shape.latent(),
                     .cache = cache.data(),
                     .kv_dtype = shape.dtype,
                     .heads = shape.latent_heads,
                     .lora = shape.lora,
                     .rope = shape.rope,
                     .scale = 0.2f,
                     .selected = selected,
                     .topk = shape.topk,
                     .out = out.as<float>(),
                     .ldo = OutWidth()},
                    table, exact, stream.get(), {scratch.data(), scratch.bytes()});
    stream.Synchronize();
    return Download<float>(out, count);
  }
};

// The scores of a row's keys in double, and a bound of the rounding errors of their products.
std::vector<double> Scores(const SparseSequences& s, int32_t sequence, int32_t position,
                           double* error) {
  const int64_t heads = s.shape.heads, width = s.shape.head_dim;
  const float* const q = s.q[sequence].data() + position * heads * width;
  const float* const weights = s.weights[sequence].data() + position * heads;
  const int64_t bytes = kernels::CacheRowBytes(s.shape.dtype, width);
  std::vector<double> scores;
  std::vector<float> key(width);
  *error = 0;
  for (int32_t j = 0; j <= position; ++j) {
    kernels::ReadCacheRow(s.shape.dtype, s.key_cache.data() + s.SlotOf(sequence, j) * bytes, width,
                          key.data());
    double score = 0, bound = 0;
    for (int64_t h = 0; h < heads; ++h) {
      double product = 0;
      for (int64_t d = 0; d < width; ++d) product += double{q[h * width + d]} * key[d];
      score += weights[h] * std::max(0.0, product);
      bound += std::abs(weights[h]) * kernels::Norm(q + h * width, width) *
               kernels::Norm(key.data(), width);
    }
    scores.push_back(score);
    *error = std::max(*error, bound * static_cast<double>(width + heads) * kernels::kEpsilon);
  }
  return scores;
}

// Checks the selection of one row. Slots are ascending by position.
void ExpectHighest(const SparseSequences& s, int32_t sequence, int32_t position,
                   const int32_t* got) {
  const int64_t topk = s.shape.topk, keys = position + 1;
  int64_t found = 0;
  if (keys <= topk) {
    for (int32_t j = 0; j < keys; ++j) ASSERT_EQ(got[j], s.SlotOf(sequence, j));
    ASSERT_EQ(std::count(got, got + topk, -1), topk - keys);
    return;
  }
  double error = 0;
  const std::vector<double> scores = Scores(s, sequence, position, &error);
  std::vector<double> sorted = scores;
  std::ranges::sort(sorted, std::greater());
  for (int32_t j = 0; j < keys; ++j) {
    const bool is = found < topk && got[found] == s.SlotOf(sequence, j);
    found += is;
    if (is) {
      ASSERT_GE(scores[j], sorted[topk - 1] - 4 * error) << j;
    } else {
      ASSERT_LE(scores[j], sorted[topk - 1] + 4 * error) << j;
    }
  }
  ASSERT_EQ(found, topk);
}

TEST_F(CudaSelectKeysTest, SelectsTheKeysWithTheHighestScores) {
  Random random(1);
  for (int round = 0; round < 30; ++round) {
    const SparseShape shape = {
        .heads = random.Pick<int64_t>({1, 5, 8, 64, 70}),
        .head_dim = random.Pick<int64_t>({1, 7, 16, 40, 64, 128, 144}),
        .topk = 1 + random.Below(150),
        .page_size = random.Pick<int32_t>({1, 16, 48}),
        .dtype = random.Pick({DType::kF32, DType::kBF16, DType::kF16, DType::kBF16})};
    const SparseSequences sequences(random, shape,
                                    {1, static_cast<int32_t>(1 + random.Below(500)), 300});
    std::vector<AttentionChunk> chunks;
    for (const int32_t s : {1, 0, 2}) {
      const auto end = static_cast<int32_t>(1 + random.Below(sequences.lengths[s]));
      const auto rows = static_cast<int32_t>(1 + random.Below(std::min(end, 8)));
      chunks.push_back({s, end - rows, end});
    }
    const SparseBatch batch(sequences.pages, shape.page_size, chunks);
    const bool exact = random.Below(2) == 0;
    SCOPED_TRACE(::testing::Message() << shape.heads << " heads of " << shape.head_dim << ", top "
                                      << shape.topk << ", pages of " << shape.page_size << ", "
                                      << Name(shape.dtype) << (exact ? ", exact" : ""));
    const std::vector<int32_t> got = sequences.Select(batch, exact, random.Pick({1, 3, 100}));
    for (int32_t row = 0; row < batch.num_rows(); ++row) {
      const int32_t* const of_row = got.data() + row * shape.topk;
      if (batch.sequence[row] < 0) {
        EXPECT_EQ(std::count(of_row, of_row + shape.topk, -1), shape.topk);
      } else {
        ExpectHighest(sequences, batch.sequence[row], batch.position[row], of_row);
      }
    }
  }
}

TEST_F(CudaSelectKeysTest, ChunksWavesAndBatchesGiveTheSameKeys) {
  Random random(2);
  for (const bool exact : {true, false}) {
    const SparseShape shape = {.heads = 32, .head_dim = 128, .topk = 90, .page_size = 16};
    const SparseSequences sequences(random, shape, {1300, 100});
    const SparseBatch whole(sequences.pages, shape.page_size, {{0, 0, 1300}});
    const std::vector<int32_t> want = sequences.Select(whole, exact, 1000);
    for (const int64_t wave : {1, 7, 1000}) {
      for (int32_t begin = 0; begin < 1300; begin += 130) {
        const int32_t end = begin + (random.Below(2) == 0 ? 1 : 130);
        std::vector<AttentionChunk> chunks = {{0, begin, end}};
        if (random.Below(2) == 0) chunks.push_back({1, 95, 100});
        const SparseBatch batch(sequences.pages, shape.page_size, chunks);
        const std::vector<int32_t> got = sequences.Select(batch, exact, wave);
        // A row of no sequence is the first one of each batch.
        ASSERT_TRUE(std::equal(got.begin() + shape.topk,
                               got.begin() + (1 + end - begin) * shape.topk,
                               want.begin() + (1 + begin) * shape.topk))
            << begin << ", waves of " << wave;
      }
    }
  }
}

// All scores are 0, and some are −0; a few are NaN.
TEST_F(CudaSelectKeysTest, OfEqualScoresTheFirstPositionsAreSelectedAndNanIsTheLowest) {
  Random random(3);
  constexpr int32_t kKeys = 1300, kTopK = 1290;
  for (const int64_t width : {1, 16}) {
    for (const float weight : {1.0f, -1.0f}) {
      SparseSequences s(
          random, {.heads = 1, .head_dim = width, .topk = kTopK, .dtype = DType::kBF16}, {kKeys});
      std::ranges::fill(s.q[0], 1.0f);
      std::ranges::fill(s.weights[0], weight);
      std::ranges::fill(s.keys[0], 0.0f);
      const auto first = [&](int32_t j) -> float& { return s.keys[0][j * width]; };
      for (int32_t j = 0; j < kKeys; ++j)
        if (j % 3 != 0) first(j) = -1.0f;
      for (const int32_t j : {0, 7, 1200}) first(j) = std::numeric_limits<float>::quiet_NaN();
      first(kKeys - 1) = 1.0f;  // of the highest score with a positive weight
      s.LayOut(random);
      std::vector<int32_t> want(kTopK, -1);  // of the row of no sequence
      const int32_t before = weight > 0 ? kTopK - 1 : kTopK;
      for (int32_t j = 0; std::ssize(want) < kTopK + before; ++j)
        if (!std::isnan(first(j))) want.push_back(s.SlotOf(0, j));
      if (weight > 0) want.push_back(s.SlotOf(0, kKeys - 1));
      const SparseBatch batch(s.pages, s.shape.page_size, {{0, kKeys - 1, kKeys}});
      EXPECT_EQ(s.Select(batch, /*exact=*/false), want) << width << ", weight " << weight;
    }
  }
}

TEST_F(CudaSelectKeysTest, AttentionHasTheBitsOfASequenceOfTheSelectedKeys) {
  Random random(4);
  for (const auto& [shape, exact] :
       {std::pair{SparseShape{.dtype = DType::kF32}, true},
        {SparseShape{.latent_heads = 9, .page_size = 1, .dtype = DType::kF16}, false},
        {SparseShape{.latent_heads = 16, .lora = 512, .rope = 64}, true},
        {SparseShape{.latent_heads = 16, .lora = 512, .rope = 64}, false},
        {SparseShape{.latent_heads = 5, .lora = 512, .rope = 64, .page_size = 1}, false},
        {SparseShape{.topk = 1030, .latent_heads = 24, .lora = 512, .rope = 64}, false}}) {
    const auto topk = static_cast<int32_t>(shape.topk);
    SCOPED_TRACE(::testing::Message()
                 << shape.latent_heads << " heads, top " << topk << (exact ? ", exact" : ""));
    const SparseSequences s(random, shape, {topk + 150, 40});
    const SparseBatch batch(s.pages, shape.page_size,
                            {{0, topk - 3, topk + 4}, {1, 30, 40}, {0, topk + 149, topk + 150}});
    const std::vector<int32_t> selected = s.Select(batch, exact);
    const std::vector<float> got = s.Attend(batch, exact, true),
                             dense = s.Attend(batch, exact, false);
    const int64_t width = s.OutWidth();
    for (int32_t row = 0; row < batch.num_rows(); ++row) {
      const float* const of_row = got.data() + row * width;
      if (batch.sequence[row] < 0 || batch.position[row] < topk) {
        ASSERT_TRUE(SameBits(of_row, dense.data() + row * width, width)) << "row " << row;
        continue;
      }
      const std::vector<float> alone =
          s.AttendTo(batch.sequence[row], batch.position[row],
                     std::span(selected).subspan(row * shape.topk, shape.topk), exact);
      ASSERT_TRUE(SameBits(of_row, alone.data(), width)) << "row " << row;
      ASSERT_FALSE(SameBits(of_row, dense.data() + row * width, width)) << "row " << row;
    }
  }
}

// The rows of a prompt are divided into several tables of sequences.
TEST_F(CudaSelectKeysTest, ChunksOfAPromptHaveTheSameBits) {
  Random random(6);
  for (const int64_t heads : {16, 24}) {
    const SparseShape shape = {.latent_heads = heads, .lora = 512, .rope = 64};
    const SparseSequences s(random, shape, {1200, 90});
    const int64_t width = s.OutWidth();
    const std::vector<float> whole =
        s.Attend(SparseBatch(s.pages, shape.page_size, {{0, 0, 1200}}), false, true);
    for (int32_t begin = 0; begin < 1200; begin += 200) {
      const int32_t end = begin + (random.Below(2) == 0 ? 1 : 200);
      const SparseBatch batch(s.pages, shape.page_size, {{0, begin, end}, {1, 60, 90}});
      const std::vector<float> part = s.Attend(batch, false, true);
      // A row of no sequence is the first one of each batch.
      ASSERT_TRUE(
          SameBits(part.data() + width, whole.data() + (1 + begin) * width, (end - begin) * width))
          << heads << " heads, row " << begin;
    }
  }
}

TEST_F(CudaSelectKeysTest, NothingToDo) {
  Random random(5);
  const SparseSequences s(random, {}, {4});
  const SparseBatch none(s.pages, s.shape.page_size, {});
  EXPECT_TRUE(s.Select(none, false).empty());
  EXPECT_TRUE(s.Attend(none, false, true).empty());
  const SparseBatch empty(s.pages, s.shape.page_size, {{0, 4, 4}});  // a row of no sequence
  EXPECT_EQ(s.Select(empty, false), std::vector<int32_t>(s.shape.topk, -1));
  EXPECT_EQ(s.Attend(empty, false, true), std::vector<float>(s.OutWidth(), 77.0f));
}

}  // namespace
}  // namespace switchyard::cuda
