// Attention and selection of keys for trees of drafts on a GPU: rows of branches have the bits of
// plain sequences, and agree with the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cache_rows.h"
#include "kernels/cuda/device/device_testing.h"
#include "kernels/reference.h"

namespace switchyard::kernels {
namespace {

constexpr int32_t kMaxBranch = 16;

struct TreeShape {
  int64_t heads = 1, kv_heads = 1, head_dim = 64;
  int64_t rope = 0;  // nonzero: latent attention with lora = head_dim − rope
  int32_t page_size = 16;
  DType dtype = DType::kBF16;
  int32_t window = 0, chunk = 0;

  int64_t q_width() const { return heads * head_dim; }
  int64_t out_width() const { return heads * (head_dim - rope); }
  int64_t key_width() const { return kv_heads * head_dim; }
};

// A sequence of a batch: `keys` keys of earlier steps, then a tree of rows. Row 0 is the root, and
// the parent of each row comes before it.
struct Tree {
  int32_t keys = 0;
  std::vector<int32_t> parents;  // [rows]; −1: the root

  int32_t rows() const { return static_cast<int32_t>(parents.size()); }
  std::vector<int32_t> PathTo(int32_t row) const {
    std::vector<int32_t> path;
    for (; row >= 0; row = parents[row]) path.insert(path.begin(), row);
    return path;
  }
};

// Mostly continues the latest rows, so that branches are long.
Tree RandomTree(Random& random, int32_t keys, int32_t rows) {
  Tree tree{.keys = keys, .parents = {-1}};
  for (int32_t row = 1; row < rows; ++row) {
    const auto back = static_cast<int32_t>(random.Below(4) > 0 ? 0 : random.Below(row));
    int32_t parent = row - 1 - back;
    if (std::ssize(tree.PathTo(parent)) > kMaxBranch) parent = 0;
    tree.parents.push_back(parent);
  }
  return tree;
}

// The rows of trees, with their keys in one cache as an engine stores them: a key of an earlier
// step in its page, and the key of row i of a tree in the slot of the i-th place after these.
class TreeBatch {
 public:
  TreeBatch(Random& random, const TreeShape& shape, std::vector<Tree> trees)
      : shape_(shape), trees_(std::move(trees)) {
    int32_t pages = 1;
    for (const Tree& tree : trees_) pages += PagesOf(tree.keys + tree.rows());
    const std::vector<int32_t> order = random.Shuffled(pages);
    auto next = order.begin();
    for (const Tree& tree : trees_) {
      const int32_t own = PagesOf(tree.keys + tree.rows());
      pages_.emplace_back(next, next + own);
      next += own;
    }
    k_.assign(int64_t{pages} * shape.page_size * KeyBytes(), static_cast<char>(0xff));  // NaN
    v_ = k_;
    for (size_t s = 0; s < trees_.size(); ++s)
      for (int32_t i = 0; i < trees_[s].keys + trees_[s].rows(); ++i) {
        Write(random, k_, SlotOf(s, i));
        Write(random, v_, SlotOf(s, i));
      }
    for (const Tree& tree : trees_) rows_ += tree.rows();
    q_ = random.Normal(rows_ * shape.q_width());
    for (float& x : q_) x = ToFloat(ToBF16(x));
    MakeBranches();
    MakePlain();
  }

  int64_t rows() const { return rows_; }
  const std::vector<float>& queries() const { return q_; }
  // As the engine makes them: rows that follow each other share a span.
  const std::vector<SequenceSpan>& branches() const { return branches_; }
  const std::vector<char>& keys() const { return k_; }
  const std::vector<char>& values() const { return v_; }
  // Each row as a sequence of its own, with all its keys in pages of another cache.
  const std::vector<SequenceSpan>& plain() const { return plain_; }
  const std::vector<char>& plain_keys() const { return plain_k_; }
  const std::vector<char>& plain_values() const { return plain_v_; }

 private:
  int32_t PagesOf(int32_t keys) const { return (keys + shape_.page_size - 1) / shape_.page_size; }
  int64_t KeyBytes() const { return CacheRowBytes(shape_.dtype, shape_.key_width()); }
  int32_t SlotOf(size_t s, int32_t i) const {
    return pages_[s][i / shape_.page_size] * shape_.page_size + i % shape_.page_size;
  }
  void Write(Random& random, std::vector<char>& cache, int32_t slot) const {
    const std::vector<float> row = random.Normal(shape_.key_width());
    WriteCacheRow(shape_.dtype, row.data(), shape_.key_width(), cache.data() + slot * KeyBytes());
  }

  void MakeBranches() {
    int32_t begin = 0;
    for (size_t s = 0; s < trees_.size(); ++s) {
      const Tree& tree = trees_[s];
      for (int32_t first = 0, end = 0; first < tree.rows(); first = end) {
        for (end = first + 1; end < tree.rows() && tree.parents[end] == end - 1;) ++end;
        const std::vector<int32_t> path = tree.PathTo(end - 1);
        SequenceSpan span = {.row_begin = begin + first,
                             .rows = end - first,
                             .kv_len = tree.keys + static_cast<int32_t>(path.size()),
                             .pages = pages_[s].data()};
        if (first > 0) {
          std::vector<int32_t>& slots = slots_.emplace_back();
          for (const int32_t row : path)
            if (row > 0) slots.push_back(SlotOf(s, tree.keys + row));
          span.branch = slots.data();
          span.branch_begin = tree.keys + 1;
        }
        branches_.push_back(span);
      }
      begin += tree.rows();
    }
  }

  void MakePlain() {
    int32_t row_begin = 0, page = 0;
    std::vector<int32_t> slots;  // of k_, for each slot of plain_k_; −1: NaN
    for (size_t s = 0; s < trees_.size(); ++s) {
      const Tree& tree = trees_[s];
      for (int32_t row = 0; row < tree.rows(); ++row) {
        const std::vector<int32_t> path = tree.PathTo(row);
        const int32_t kv_len = tree.keys + static_cast<int32_t>(path.size());
        for (int32_t key = 0; key < kv_len; ++key)
          slots.push_back(SlotOf(s, key < tree.keys ? key : tree.keys + path[key - tree.keys]));
        std::vector<int32_t>& pages = plain_pages_.emplace_back();
        for (int32_t i = 0; i < PagesOf(kv_len); ++i) pages.push_back(page++);
        slots.resize(int64_t{page} * shape_.page_size, -1);
        plain_.push_back(
            {.row_begin = row_begin++, .rows = 1, .kv_len = kv_len, .pages = pages.data()});
      }
    }
    const int64_t bytes = KeyBytes();
    plain_k_.assign(std::ssize(slots) * bytes, static_cast<char>(0xff));
    plain_v_ = plain_k_;
    for (int64_t i = 0; i < std::ssize(slots); ++i) {
      if (slots[i] < 0) continue;
      std::copy_n(k_.begin() + slots[i] * bytes, bytes, plain_k_.begin() + i * bytes);
      std::copy_n(v_.begin() + slots[i] * bytes, bytes, plain_v_.begin() + i * bytes);
    }
  }

  const TreeShape shape_;
  const std::vector<Tree> trees_;
  int64_t rows_ = 0;
  std::vector<float> q_;
  std::vector<char> k_, v_, plain_k_, plain_v_;
  std::vector<std::vector<int32_t>> pages_, slots_, plain_pages_;
  std::vector<SequenceSpan> branches_, plain_;
};

class TreeAttentionTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 256, kMaxPages = 1400;
  static constexpr int64_t kMaxTables = 7;  // six trees, and the rows that pad a batch

  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "no GPU";
    exact_ = Make(DType::kF32, kMaxTables);
    fast_ = Make(DType::kBF16, kMaxTables);
    plain_exact_ = Make(DType::kF32, kRows);
    plain_fast_ = Make(DType::kBF16, kRows);
  }
  static std::unique_ptr<Device> Make(DType dtype, int64_t page_tables) {
    return MakeCudaDevice({.dtype = dtype,
                           .max_tokens = kRows,
                           .max_sequences = kRows,
                           .max_pages = kMaxPages,
                           .max_branch = kMaxBranch,
                           .max_page_tables = page_tables});
  }
  // The device of plain sequences, which has a page table for each row.
  Device& Plain(const Device& device) {
    return &device == exact_.get() ? *plain_exact_ : *plain_fast_;
  }
  static AttentionParams Grouped(const TreeShape& shape) {
    return {.ldq = shape.q_width(),
            .kv_dtype = shape.dtype,
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .page_size = shape.page_size,
            .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
            .window = shape.window,
            .chunk = shape.chunk,
            .ldo = shape.out_width()};
  }
  static LatentAttentionParams Latent(const TreeShape& shape) {
    return {.ldq = shape.q_width(),
            .kv_dtype = shape.dtype,
            .heads = shape.heads,
            .lora = shape.head_dim - shape.rope,
            .rope = shape.rope,
            .page_size = shape.page_size,
            .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
            .ldo = shape.out_width()};
  }
  static void Attend(Device& device, const TreeShape& shape, const float* q, const void* k,
                     const void* v, const PassSequences& sequences, float* out) {
    if (shape.rope > 0) {
      LatentAttentionParams p = Latent(shape);
      p.q = q, p.cache = k, p.out = out;
      return device.LatentAttention(p, sequences);
    }
    AttentionParams p = Grouped(shape);
    p.q = q, p.k_cache = k, p.v_cache = v, p.out = out;
    device.Attention(p, sequences);
  }
  std::vector<float> Run(Device& of_trees, const TreeShape& shape, const TreeBatch& batch,
                         bool branches) {
    Device& device = branches ? of_trees : Plain(of_trees);
    const DeviceVector q(device, batch.queries());
    const DeviceVector k(device, branches ? batch.keys() : batch.plain_keys());
    const DeviceVector v(device, branches ? batch.values() : batch.plain_values());
    const DeviceVector out(device, std::vector<float>(batch.rows() * shape.out_width()));
    const auto sequences = device.MakeSequences();
    sequences->Set(branches ? batch.branches() : batch.plain(), shape.page_size);
    Attend(device, shape, q.data(), k.data(), v.data(), *sequences, out.data());
    return out.Read();
  }
  static std::vector<float> OnCpu(const TreeShape& shape, const TreeBatch& batch) {
    std::vector<float> out(batch.rows() * shape.out_width());
    if (shape.rope > 0) {
      LatentAttentionParams p = Latent(shape);
      p.q = batch.queries().data(), p.cache = batch.keys().data(), p.out = out.data();
      p.sequences = batch.branches();
      reference::LatentAttention(p);
    } else {
      AttentionParams p = Grouped(shape);
      p.q = batch.queries().data(), p.out = out.data();
      p.k_cache = batch.keys().data(), p.v_cache = batch.values().data();
      p.sequences = batch.branches();
      reference::Attention(p);
    }
    return out;
  }
  // Sequences whose trees begin at, before and after ends of blocks and splits of keys.
  std::vector<Tree> RandomTrees(int count, int32_t most_keys) {
    std::vector<Tree> trees;
    for (int i = 0; i < count; ++i) {
      int32_t keys = random_.Pick<int32_t>({0, 1, 57, 62, 63, 64, 125, 250, 255, 256, 500, 1020});
      if (random_.Below(2) == 0) keys = static_cast<int32_t>(random_.Below(600));
      const auto rows = static_cast<int32_t>(1 + random_.Below(20));
      trees.push_back(RandomTree(random_, std::min(keys, most_keys), rows));
    }
    return trees;
  }

  Random random_{1};
  std::unique_ptr<Device> exact_, fast_, plain_exact_, plain_fast_;
};

std::string Describe(const TreeShape& s) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " heads of " +
         std::to_string(s.head_dim) + ", rope " + std::to_string(s.rope) + ", pages of " +
         std::to_string(s.page_size) + ", window " + std::to_string(s.window) + ", chunks of " +
         std::to_string(s.chunk);
}

TEST_F(TreeAttentionTest, RowsHaveTheBitsOfPlainSequencesAndAgreeWithTheCpu) {
  const std::vector<TreeShape> shapes = {
      {.heads = 8, .kv_heads = 1, .head_dim = 128},
      {.heads = 8, .kv_heads = 2, .head_dim = 64, .page_size = 64},
      {.heads = 32, .kv_heads = 2, .head_dim = 128, .page_size = 64},
      {.heads = 40, .kv_heads = 2, .head_dim = 64, .page_size = 1},
      {.heads = 4, .kv_heads = 2, .head_dim = 128, .page_size = 48, .window = 100},
      {.heads = 16, .kv_heads = 1, .head_dim = 64, .chunk = 260},
      {.heads = 16, .kv_heads = 2, .head_dim = 256},
      {.heads = 8, .kv_heads = 2, .head_dim = 128, .page_size = 64, .dtype = DType::kF8E4M3},
      {.heads = 3, .kv_heads = 3, .head_dim = 80, .dtype = DType::kF32},
      {.heads = 6, .kv_heads = 3, .head_dim = 96, .dtype = DType::kF16},
      {.heads = 16, .head_dim = 576, .rope = 64, .page_size = 64},
      {.heads = 128, .head_dim = 576, .rope = 64, .page_size = 16},
      {.heads = 5, .head_dim = 144, .rope = 16, .page_size = 1}};
  for (const TreeShape& shape : shapes) {
    const bool wide = shape.heads * shape.head_dim > 16000;
    for (int round = 0; round < (wide ? 1 : 2); ++round) {
      const int count = static_cast<int>(1 + random_.Below(wide ? 2 : 6));
      const TreeBatch batch(random_, shape, RandomTrees(count, wide ? 300 : 1100));
      const std::vector<float> want = OnCpu(shape, batch);
      for (Device* device : {exact_.get(), fast_.get()}) {
        const std::vector<float> got = Run(*device, shape, batch, /*branches=*/true);
        ASSERT_TRUE(SameBits(got, Run(*device, shape, batch, false))) << Describe(shape);
        const double tolerance = device == exact_.get() ? 2e-5 : 1e-2;
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], want[i], tolerance) << Describe(shape) << " at " << i;
      }
    }
  }
}

// A captured pass reads the branches that were set last. Its numbers of rows and sequences are
// fixed, so other sequences and rows fill up, as in padded batches.
TEST_F(TreeAttentionTest, CapturedPassesReadTheBranchesOfTheirStep) {
  constexpr int64_t kPadded = 64;
  uint64_t key = 0;
  for (const TreeShape& shape : {TreeShape{.heads = 8, .kv_heads = 2, .head_dim = 128},
                                 TreeShape{.heads = 16, .head_dim = 576, .rope = 64}}) {
    ++key;
    const int64_t cache_slots = 8192;
    const int64_t bytes = CacheRowBytes(shape.dtype, shape.key_width());
    Device& device = *fast_;
    const DeviceVector q(device, std::vector<float>(kPadded * shape.q_width()));
    const DeviceVector k(device, std::vector<char>(cache_slots * bytes));
    const DeviceVector v(device, std::vector<char>(cache_slots * bytes));
    const DeviceVector out(device, std::vector<float>(kPadded * shape.out_width()));
    const auto sequences = device.MakeSequences();
    const int32_t spare = static_cast<int32_t>(cache_slots / shape.page_size) - 1;
    for (int round = 0; round < 6; ++round) {
      std::vector<Tree> trees;
      const int32_t rows = round % 3 == 2 ? 1 : 12;  // some steps have no branches
      for (int i = 0; i < 4; ++i)
        trees.push_back(RandomTree(random_, static_cast<int32_t>(random_.Below(700)), rows));
      const TreeBatch batch(random_, shape, trees);
      ASSERT_LT(std::ssize(batch.keys()), (cache_slots - shape.page_size) * bytes);
      device.CopyIn(q.data(), batch.queries().data(), batch.queries().size() * sizeof(float));
      device.CopyIn(k.data(), batch.keys().data(), batch.keys().size());
      device.CopyIn(v.data(), batch.values().data(), batch.values().size());
      std::vector<SequenceSpan> spans = batch.branches();
      for (auto row = static_cast<int32_t>(batch.rows()); row < kPadded; ++row)
        spans.push_back({.row_begin = row, .rows = 1, .kv_len = 1, .pages = &spare});
      while (std::ssize(spans) < kPadded) spans.push_back({.row_begin = kPadded, .pages = &spare});
      sequences->Set(spans, shape.page_size);
      device.Run(key, [&] {
        Attend(device, shape, q.data(), k.data(), v.data(), *sequences, out.data());
      });
      const std::vector<float> got = out.Read();
      const std::vector<float> want = Run(device, shape, batch, /*branches=*/false);
      EXPECT_TRUE(SameBits(got.data(), want.data(), std::ssize(want)))
          << Describe(shape) << " round " << round;
    }
  }
}

// Rows of branches select the keys of the same positions as plain sequences. Attention to selected
// keys does not know branches.
TEST_F(TreeAttentionTest, BranchesSelectTheKeysOfTheirPositions) {
  constexpr int64_t kIndexHeads = 8, kTopK = 40;
  const TreeShape index = {.heads = kIndexHeads, .head_dim = 64};
  for (Device* device : {exact_.get(), fast_.get()}) {
    const TreeBatch batch(random_, index, RandomTrees(4, 500));
    const std::vector<float> weights = random_.Normal(batch.rows() * kIndexHeads);
    const auto positions = [&](bool branches) {
      Device& used = branches ? *device : Plain(*device);
      const DeviceVector q(used, batch.queries()), w(used, weights);
      const DeviceVector k(used, branches ? batch.keys() : batch.plain_keys());
      const DeviceVector selected(used, std::vector<int32_t>(batch.rows() * kTopK, -1));
      const std::vector<SequenceSpan>& spans = branches ? batch.branches() : batch.plain();
      const auto sequences = used.MakeSequences();
      sequences->Set(spans, index.page_size);
      used.SelectKeys({.q = q.data(),
                       .ldq = index.q_width(),
                       .weights = w.data(),
                       .cache = k.data(),
                       .kv_dtype = index.dtype,
                       .heads = kIndexHeads,
                       .head_dim = index.head_dim,
                       .topk = kTopK,
                       .page_size = index.page_size,
                       .selected = selected.data()},
                      *sequences);
      std::vector<int32_t> found = selected.Read();
      for (const SequenceSpan& span : spans) {
        for (int32_t row = 0; row < span.rows; ++row) {
          int32_t* const slots = found.data() + (span.row_begin + row) * kTopK;
          const int32_t keys = span.kv_len - span.rows + row + 1;
          for (int32_t i = 0, key = 0; i < std::min<int64_t>(kTopK, keys); ++i) {
            while (key < keys && span.SlotOf(key, index.page_size) != slots[i]) ++key;
            EXPECT_LT(key, keys) << "slot " << slots[i];
            slots[i] = key;
          }
        }
      }
      return found;
    };
    const std::vector<int32_t> want = positions(false);
    EXPECT_EQ(positions(true), want);
  }
}

}  // namespace
}  // namespace switchyard::kernels
