// Compares the MTP layers of MiMo-V2-Flash and LongCat-Flash with a plain computation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/test_layouts.h"
#include "model/test_mtp.h"
#include "model/test_plain_rows.h"
#include "model/weights.h"

namespace switchyard {
namespace {

using testing::PartOf;
using testing::RawTensors;
using testing::Row;

constexpr double kNormEps = 1e-5, kRopeTheta = 10000;

// Rotates a pair of elements of a query or key.
void Rotate(int64_t position, int64_t pair, int64_t rotated, double& a, double& b) {
  const double angle =
      static_cast<double>(position) *
      std::pow(kRopeTheta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotated));
  const double x = a, y = b;
  a = x * std::cos(angle) - y * std::sin(angle);
  b = y * std::cos(angle) + x * std::sin(angle);
}

// An MTP layer by the published code. Positions are added one after another.
class PlainMtpLayer {
 public:
  explicit PlainMtpLayer(const RawTensors& tensors) : tensors_(tensors), linears_(tensors) {}
  virtual ~PlainMtpLayer() = default;

  // `hidden`: the target's row, or this layer's `row` for later drafts.
  void Add(int32_t token, const Row& hidden) {
    const Row embedding = ValuesOf(tensors_.at(Embedding()));
    const int64_t width = std::ssize(hidden);
    const Row e = Norm(PartOf(embedding, token * width, width), EmbeddingNorm());
    const Row h = Norm(hidden, HiddenNorm());
    Row x = Project("eh_proj", testing::JoinRows(e, h));
    testing::AddTo(x, Project("self_attn.o_proj", Attend(Norm(x, "input_layernorm"))));
    testing::AddTo(x, linears_.FeedForward(testing::kMtpPrefix + FeedForwardPrefix(),
                                           Norm(x, FeedForwardNorm())));
    const Row normed = linears_.Norm(x, FinalNorm(), kNormEps);
    logits = testing::Multiply(ValuesOf(tensors_.at("lm_head.weight")), normed);
    row = KeepsNormed() ? normed : x;
  }

  Row row, logits;  // of the last position

 protected:
  Row Project(const std::string& name, const Row& x) const {
    return linears_.Project(testing::kMtpPrefix + name, x);
  }
  Row Norm(const Row& x, const std::string& name, double eps = kNormEps) const {
    return linears_.Norm(x, testing::kMtpPrefix + name, eps);
  }
  Row Values(const std::string& name) const {
    return ValuesOf(tensors_.at(testing::kMtpPrefix + name));
  }

 private:
  virtual std::string Embedding() const = 0;  // of the tensor
  // Names in the layer.
  virtual std::string EmbeddingNorm() const = 0;
  virtual std::string HiddenNorm() const = 0;
  virtual std::string FeedForwardNorm() const = 0;
  virtual std::string FeedForwardPrefix() const = 0;
  virtual std::string FinalNorm() const = 0;  // in the checkpoint
  virtual bool KeepsNormed() const = 0;       // whether `row` is the one after the final norm
  virtual Row Attend(const Row& x) = 0;

  const RawTensors& tensors_;
  const testing::PlainLinears linears_;
};

// The sizes are those of tests/data/families/mimo_v2_flash.
class PlainMimo : public PlainMtpLayer {
 public:
  using PlainMtpLayer::PlainMtpLayer;

 private:
  static constexpr int64_t kHeads = 8, kKvHeads = 4, kDim = 24, kValueDim = 16, kRotated = 8;
  static constexpr int64_t kWindow = 8;  // includes the query's own key
  static constexpr double kValueScale = 0.707;

  std::string Embedding() const override { return "model.embed_tokens.weight"; }
  std::string EmbeddingNorm() const override { return "enorm"; }
  std::string HiddenNorm() const override { return "hnorm"; }
  std::string FeedForwardNorm() const override { return "pre_mlp_layernorm"; }
  std::string FeedForwardPrefix() const override { return "mlp."; }
  std::string FinalNorm() const override { return testing::kMtpPrefix + "final_layernorm"; }
  bool KeepsNormed() const override { return false; }

  // The first elements of each head are rotated: element i with element i + kRotated / 2.
  Row Rotated(Row x) const {
    for (size_t head = 0; head < x.size(); head += kDim)
      for (int64_t i = 0; i < kRotated / 2; ++i)
        Rotate(std::ssize(keys_), i, kRotated, x[head + i], x[head + i + kRotated / 2]);
    return x;
  }
  Row Attend(const Row& x) override {
    const Row q = Rotated(Project("self_attn.q_proj", x)),
              sinks = Values("self_attn.attention_sink_bias");
    Row k = Rotated(Project("self_attn.k_proj", x));
    keys_.push_back(std::move(k));
    values_.push_back(Project("self_attn.v_proj", x));
    Row out(kHeads * kValueDim);
    const int64_t end = std::ssize(keys_), begin = std::max<int64_t>(0, end - kWindow);
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t kv = h / (kHeads / kKvHeads);
      Row weights;
      double sum = std::exp(sinks[h]);
      for (int64_t p = begin; p < end; ++p) {
        const double score = testing::Dot(&q[h * kDim], &keys_[p][kv * kDim], kDim);
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(kDim))));
        sum += weights.back();
      }
      for (int64_t p = begin; p < end; ++p)
        for (int64_t i = 0; i < kValueDim; ++i)
          out[h * kValueDim + i] +=
              kValueScale * weights[p - begin] / sum * values_[p][kv * kValueDim + i];
    }
    return out;
  }

  std::vector<Row> keys_, values_;
};

// The sizes are those of tests/data/families/longcat_flash.
class PlainLongcat : public PlainMtpLayer {
 public:
  using PlainMtpLayer::PlainMtpLayer;

 private:
  static constexpr int64_t kHidden = 32, kHeads = 4, kNope = 12, kRope = 8, kValueDim = 12;
  static constexpr int64_t kQueryRank = 20, kRank = 16;
  static constexpr double kLatentEps = 1e-6;

  std::string Embedding() const override { return "model.mtp.embed_tokens.weight"; }
  std::string EmbeddingNorm() const override { return "enorm.m"; }
  std::string HiddenNorm() const override { return "hnorm.m"; }
  std::string FeedForwardNorm() const override { return "post_attention_layernorm"; }
  std::string FeedForwardPrefix() const override { return "transformer_layer.mlp."; }
  std::string FinalNorm() const override { return "model.mtp.norm"; }
  bool KeepsNormed() const override { return true; }

  static Row Scaled(Row x, int64_t rank) {
    const double scale = std::sqrt(static_cast<double>(kHidden) / static_cast<double>(rank));
    for (double& value : x) value *= scale;
    return x;
  }
  // Neighbouring elements are rotated.
  void RotateAt(Row& x, int64_t first) const {
    for (int64_t i = 0; i < kRope / 2; ++i)
      Rotate(std::ssize(keys_), i, kRope, x[first + 2 * i], x[first + 2 * i + 1]);
  }
  Row Attend(const Row& x) override {
    const Row q_latent =
        Norm(Project("self_attn.q_a_proj", x), "self_attn.q_a_layernorm", kLatentEps);
    Row q = Scaled(Project("self_attn.q_b_proj", q_latent), kQueryRank);
    for (int64_t h = 0; h < kHeads; ++h) RotateAt(q, h * (kNope + kRope) + kNope);
    const Row kv = Project("self_attn.kv_a_proj_with_mqa", x);
    const Row latent = Norm(PartOf(kv, 0, kRank), "self_attn.kv_a_layernorm", kLatentEps);
    Row rotated = PartOf(kv, kRank, kRope);
    RotateAt(rotated, 0);
    // Of each head: keys without position, then values.
    keys_.push_back(Project("self_attn.kv_b_proj", Scaled(latent, kRank)));
    rotated_.push_back(std::move(rotated));
    Row out(kHeads * kValueDim);
    for (int64_t h = 0; h < kHeads; ++h) {
      const double* const query = &q[h * (kNope + kRope)];
      const int64_t at = h * (kNope + kValueDim);
      Row weights;
      double sum = 0;
      for (size_t p = 0; p < keys_.size(); ++p) {
        const double score = testing::Dot(query, &keys_[p][at], kNope) +
                             testing::Dot(query + kNope, rotated_[p].data(), kRope);
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(kNope + kRope))));
        sum += weights.back();
      }
      for (size_t p = 0; p < keys_.size(); ++p)
        for (int64_t i = 0; i < kValueDim; ++i)
          out[h * kValueDim + i] += weights[p] / sum * keys_[p][at + kNope + i];
    }
    return out;
  }

  std::vector<Row> keys_, rotated_;
};

// On one rank: rows of a prompt, and the rows of a chain of drafts.
template <typename Plain>
void CompareOnRank(const ModelConfig& config, const std::filesystem::path& dir,
                   const RawTensors& tensors, RankComm& comm) {
  ThreadPool pool(1);
  ModelOptions options{.dtype = DType::kF32, .max_tokens = 32};
  options.keeps_hidden = true;
  Model model(dir, config, options, comm, pool);
  KvStorage kv(config, comm.mesh, std::size(testing::kPlainPages), kPageSize, DType::kF32);

  ForwardBatch batch = testing::PlainBatchOf(Ids(11, 5), 0);
  testing::RandomTensors random(7);
  random.Add("hidden", {batch.num_tokens(), config.hidden}, 0, 2);
  const testing::RawTensor& hidden = random.tensors.at("hidden");
  const Row rows = ValuesOf(hidden);
  batch.hidden = reinterpret_cast<const float*>(hidden.bytes.data());
  batch.only_logit_rows = true;
  Plain plain(tensors);
  for (int64_t i = 0; i < batch.num_tokens(); ++i)
    plain.Add(batch.tokens[i], PartOf(rows, i * config.hidden, config.hidden));
  for (const int32_t next : {500, 7, -1}) {
    const std::span<const float> logits = model.Forward(batch, kv);
    ASSERT_EQ(logits.size(), plain.logits.size());
    testing::ExpectNear(logits.data(), plain.logits, "logit");
    testing::ExpectNear(model.hidden(), plain.row, "hidden");
    if (next < 0) return;
    batch = testing::PlainBatchOf({next}, batch.positions.back() + 1);
    batch.hidden = model.hidden();
    batch.own_hidden = true;
    plain.Add(next, Row(plain.row));
  }
}

template <typename Plain>
void CompareLayers(const std::string& fixture, const MeshShape& shape) {
  SCOPED_TRACE(::testing::Message() << fixture << " tp " << shape.tp << " ep " << shape.ep);
  const std::filesystem::path from = Fixture("../families/" + fixture);
  const RawTensors tensors = testing::WithMtpLayer(from);
  const testing::TempDir dir;
  testing::WriteModel(from, tensors, dir.path());
  const ModelConfig target = LoadModelConfig(dir.path()), config = MtpConfigOf(target);
  CheckCheckpoint(dir.path(), target);
  CheckCheckpoint(dir.path(), config);
  RunRankThreads(shape.tp, SymmetricBytesPerRank(config, {}, shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   const auto comm = RankComm::Create(std::move(arena), shape, rank);
                   CompareOnRank<Plain>(config, dir.path(), tensors, *comm);
                 });
}

TEST(MtpLayersTest, ComputeWhatTheirPublishedCodeDoes) {
  for (const MeshShape& shape : {MeshShape{.tp = 1}, {.tp = 2}, {.tp = 2, .ep = 2}}) {
    CompareLayers<PlainMimo>("mimo_v2_flash", shape);
    CompareLayers<PlainLongcat>("longcat_flash", shape);
  }
}

// A pass of one of several MTP layers has the logits of this layer alone.
TEST(MtpLayersTest, RunByDepth) {
  constexpr int64_t kLayers = 3;
  const std::filesystem::path from = Fixture("../families/mimo_v2_flash");
  const RawTensors tensors = testing::WithMtpLayer(from, kLayers);
  const testing::TempDir dir;
  testing::WriteModel(from, tensors, dir.path(), kLayers);
  const ModelConfig config = MtpConfigOf(LoadModelConfig(dir.path()), /*by_depth=*/true);
  ASSERT_EQ(config.mtp_depths, kLayers);
  ASSERT_EQ(config.num_layers(), kLayers);
  CheckCheckpoint(dir.path(), config);
  ForwardBatch batch = testing::PlainBatchOf(Ids(11, 5), 0);
  testing::RandomTensors random(7);
  random.Add("hidden", {batch.num_tokens(), config.hidden}, 0, 2);
  batch.hidden = reinterpret_cast<const float*>(random.tensors.at("hidden").bytes.data());
  batch.only_logit_rows = true;
  const auto run = [&](const std::filesystem::path& path, const ModelConfig& model_config,
                       int32_t depth) {
    std::vector<float> logits;
    RunRankThreads(1, SymmetricBytesPerRank(model_config, {}, {.tp = 1}),
                   [&](int rank, std::shared_ptr<SharedArena> arena) {
                     const auto comm = RankComm::Create(std::move(arena), {.tp = 1}, rank);
                     ThreadPool pool(1);
                     ModelOptions options{.dtype = DType::kF32, .max_tokens = 32};
                     options.keeps_hidden = true;
                     Model model(path, model_config, options, *comm, pool);
                     KvStorage kv(model_config, comm->mesh, std::size(testing::kPlainPages),
                                  kPageSize, DType::kF32);
                     ForwardBatch own = batch;
                     // The other layers' keys are in the cache too.
                     for (int32_t i = 0; i < model_config.mtp_depths; ++i) {
                       own.depth = i;
                       const std::span<const float> all = model.Forward(own, kv);
                       if (i == depth) logits.assign(all.begin(), all.end());
                     }
                   });
    return logits;
  };
  for (int32_t depth = 0; depth < kLayers; ++depth) {
    RawTensors one = testing::ReadSafetensors(from);
    const std::string prefix = testing::MimoMtpPrefix(depth);
    for (const auto& [name, tensor] : tensors)
      if (name.starts_with(prefix)) one[testing::kMtpPrefix + name.substr(prefix.size())] = tensor;
    const testing::TempDir alone;
    testing::WriteModel(from, one, alone.path());
    const std::vector<float> want =
        run(alone.path(), MtpConfigOf(LoadModelConfig(alone.path())), 0);
    EXPECT_FALSE(want.empty());
    EXPECT_EQ(run(dir.path(), config, depth), want) << depth;
  }
}

// Whatever the last layer of the model is.
TEST(MtpLayersTest, AreOfTheirOwnKind) {
  for (const char* name : {"mimo_v2_flash", "mimo_v2_flash_published"}) {
    const ModelConfig target = LoadModelConfig(Fixture(std::string("../families/") + name));
    const ModelConfig mtp = MtpConfigOf(target);
    ASSERT_EQ(mtp.num_layers(), 1);
    EXPECT_FALSE(mtp.has_moe() || mtp.layers[0].moe);
    EXPECT_EQ(mtp.kv_heads(0), 2 * target.attention.kv_heads);
    EXPECT_EQ(mtp.layers[0].window, name == std::string("mimo_v2_flash") ? 8 : 5);
    EXPECT_TRUE(mtp.uses_window_rope(0));
  }
  const ModelConfig mtp = MtpConfigOf(LoadModelConfig(Fixture("../families/longcat_flash")));
  EXPECT_FALSE(mtp.has_moe() || mtp.has_shortcuts() || mtp.layers[0].moe);
  EXPECT_TRUE(mtp.layers[0].dense());
}

}  // namespace
}  // namespace switchyard
