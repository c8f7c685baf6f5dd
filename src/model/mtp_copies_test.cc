// MTP layers whose layers have the names of the model's own layers: a model of the family with
// these layers, whose embedding has the joined rows, gives the same logits. Such models are
// compared with transformers.
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/testing.h"
#include "model/test_layouts.h"
#include "model/test_mtp.h"
#include "model/test_plain_rows.h"
#include "model/weights.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;
using testing::PartOf;
using testing::RawTensors;
using testing::Row;

constexpr int64_t kPromptRows = 9, kDraftRows = 3;

// The rows of one sequence: a prompt, and with `drafts` the rows of a chain of drafts.
struct SequenceRows {
  std::vector<int32_t> tokens;
  Row hidden;  // [T, ModelConfig::hidden_row_width], the hidden row of each token
  Row logits;  // [T, vocab]
};

class MtpCopies {
 public:
  explicit MtpCopies(const std::string& family)
      : from_(Fixture("../families/" + family)),
        tensors_(testing::WithMtpLayer(from_)),
        linears_(tensors_) {
    testing::WriteModel(from_, tensors_, dir_.path());
    target_ = LoadModelConfig(dir_.path());
    config_ = MtpConfigOf(target_);
    names_ = testing::MtpNamesOf(target_);
    CheckCheckpoint(dir_.path(), target_);
    CheckCheckpoint(dir_.path(), config_);
  }

  // Runs the MTP layer. The last rank's rows are returned, all ranks' are equal.
  SequenceRows Run(const MeshShape& shape) const {
    std::vector<SequenceRows> of_ranks(shape.tp);
    RunRankThreads(shape.tp, SymmetricBytesPerRank(config_, {}, shape),
                   [&](int rank, std::shared_ptr<SharedArena> arena) {
                     const auto comm = RankComm::Create(std::move(arena), shape, rank);
                     of_ranks[rank] = RunOnRank(*comm);
                   });
    for (const SequenceRows& rows : of_ranks) EXPECT_EQ(rows.logits, of_ranks[0].logits);
    return of_ranks.back();
  }

  // The logits of a model of the family for the same rows.
  Row Expected(const SequenceRows& rows) const {
    const testing::TempDir dir;
    const ModelConfig plain = WritePlain(rows, dir.path());
    Row logits;
    RunRankThreads(1, SymmetricBytesPerRank(plain, {}, {.tp = 1}),
                   [&](int rank, std::shared_ptr<SharedArena> arena) {
                     const auto comm = RankComm::Create(std::move(arena), {.tp = 1}, rank);
                     ThreadPool pool(1);
                     Model model(dir.path(), plain, {.dtype = DType::kF32, .max_tokens = 32}, *comm,
                                 pool);
                     KvStorage kv = CacheOf(plain, *comm);
                     std::vector<int32_t> ids;
                     for (size_t i = 0; i < rows.tokens.size(); ++i)
                       ids.push_back(static_cast<int32_t>(i));
                     ForwardBatch batch = testing::PlainBatchOf(ids, 0);
                     batch.hidden_rows.clear();
                     batch.logit_rows = ids;
                     const std::span<const float> all = model.Forward(batch, kv);
                     logits.assign(all.begin(), all.end());
                   });
    return logits;
  }

  const ModelConfig& target() const { return target_; }
  const ModelConfig& config() const { return config_; }

 private:
  static KvStorage CacheOf(const ModelConfig& config, const RankComm& comm) {
    return {config, comm.mesh, std::size(testing::kPlainPages), kPageSize, DType::kF32};
  }

  // Random rows. Streams of a token are equal, as those of an embedding are.
  std::vector<float> HiddenRows() const {
    std::vector<float> rows;
    testing::RandomTensors random(7);
    random.Add("hidden", {kPromptRows, config_.hidden}, 0, 2);
    const Row values = ValuesOf(random.tensors.at("hidden"));
    for (int64_t i = 0; i < kPromptRows; ++i)
      for (int64_t j = 0; j < config_.hidden_row_width(); ++j)
        rows.push_back(static_cast<float>(values[i * config_.hidden + j % config_.hidden]));
    return rows;
  }

  SequenceRows RunOnRank(RankComm& comm) const {
    ThreadPool pool(1);
    ModelOptions options{.dtype = DType::kF32, .max_tokens = 32};
    options.keeps_hidden = true;
    Model model(dir_.path(), config_, options, comm, pool);
    KvStorage kv = CacheOf(config_, comm);
    const std::vector<float> hidden = HiddenRows();
    const int64_t width = config_.hidden_row_width();
    SequenceRows all;
    ForwardBatch batch = testing::PlainBatchOf(Ids(kPromptRows, 5), 0);
    batch.hidden = hidden.data();
    for (int32_t i = 0; i + 1 < kPromptRows; ++i) batch.logit_rows.push_back(i);
    std::ranges::sort(batch.logit_rows);
    const auto add = [&](std::span<const float> logits) {
      all.tokens.insert(all.tokens.end(), batch.tokens.begin(), batch.tokens.end());
      all.hidden.insert(all.hidden.end(), batch.hidden, batch.hidden + batch.num_tokens() * width);
      all.logits.insert(all.logits.end(), logits.begin(), logits.end());
    };
    add(model.Forward(batch, kv));
    // As drafts run: only the last row has logits, and rows without them are dropped.
    const std::vector<float> last(all.logits.end() - config_.vocab_size, all.logits.end());
    batch.logit_rows = {static_cast<int32_t>(kPromptRows - 1)};
    batch.only_logit_rows = true;
    const std::span<const float> again = model.Forward(batch, kv);
    EXPECT_EQ(std::vector<float>(again.begin(), again.end()), last);
    if (config_.streams) return all;  // the streams of later rows differ
    for (int64_t i = 0; i < kDraftRows; ++i) {
      const std::vector<float> own(model.hidden(), model.hidden() + width);
      batch = testing::PlainBatchOf({static_cast<int32_t>(3 + 100 * i)},
                                    static_cast<int32_t>(kPromptRows + i));
      batch.hidden = own.data();
      batch.own_hidden = true;
      batch.only_logit_rows = true;
      add(model.Forward(batch, kv));
    }
    return all;
  }

  // The input of the first layer.
  Row Joined(const Row& embedding, const Row& hidden) const {
    const Row e = linears_.Norm(embedding, names_.embedding_norm, config_.norm_eps);
    const Row h = linears_.Norm(hidden, names_.hidden_norm, config_.norm_eps);
    if (!config_.streams) return linears_.Project(names_.projection, testing::JoinRows(e, h));
    Row sum = linears_.Project(names_.embedding_projection, e);
    testing::AddTo(sum, linears_.Project(names_.projection, h));
    return sum;
  }

  // Writes a model of the family with the layers of the MTP layer. Token i has the joined row i.
  ModelConfig WritePlain(const SequenceRows& rows, const std::filesystem::path& to) const {
    ModelConfig plain = config_;
    plain.is_mtp = plain.mtp_before_norm = plain.tie_embeddings = false;
    plain.first_layer = plain.mtp_layers = 0;
    const TensorNames of_target = NamesOf(target_), names = NamesOf(plain);
    RawTensors out;
    for (size_t layer = 0; layer < names_.layers.size(); ++layer)
      for (const auto& [name, tensor] : tensors_)
        if (name.starts_with(names_.layers[layer]))
          out[LayerPrefix(names, static_cast<int64_t>(layer)) +
              name.substr(names_.layers[layer].size())] = tensor;
    const auto own = [&](const std::string& name, const std::string& of_model) {
      return tensors_.at(name.empty() ? of_model : name + ".weight");
    };
    out[names.final_norm] = tensors_.at(names_.final_norm + ".weight");
    out[names.head] =
        own(names_.head, target_.tie_embeddings ? of_target.embedding : of_target.head);
    for (const char* part : {"fn", "base", "scale"})
      if (config_.streams)
        out[names.head_streams + part] = tensors_.at(std::string("mtp.0.hc_head_") + part);
    const Row embedding = ValuesOf(own(names_.embedding, of_target.embedding));
    const int64_t hidden = config_.hidden, width = config_.hidden_row_width();
    std::vector<float> joined(config_.vocab_size * hidden);
    for (size_t i = 0; i < rows.tokens.size(); ++i) {
      const Row row = Joined(PartOf(embedding, rows.tokens[i] * hidden, hidden),
                             PartOf(rows.hidden, static_cast<int64_t>(i) * width, hidden));
      std::ranges::copy(row, joined.begin() + static_cast<int64_t>(i) * hidden);
    }
    out[names.embedding] = testing::FloatTensor({config_.vocab_size, hidden}, joined);
    testing::WriteModel(from_, out, to);
    return plain;
  }

  const std::filesystem::path from_;
  const RawTensors tensors_;
  const testing::PlainLinears linears_;
  const testing::TempDir dir_;
  ModelConfig target_, config_;
  testing::MtpNames names_;
};

constexpr const char* kCopiedFamilies[] = {
    "exaone_moe",     "exaone_moe_groups",   "ernie4_5_moe", "ernie4_5_moe_sparse",
    "bailing_moe_v2", "bailing_moe_v2_bias", "nemotron_h",   "nemotron_h_latent",
    "deepseek_v4",    "deepseek_v4_plain"};

TEST(MtpCopiesTest, GiveTheLogitsOfAModelOfTheseLayers) {
  for (const char* family : kCopiedFamilies) {
    const MtpCopies layer(family);
    const SequenceRows one = layer.Run({.tp = 1});
    const Row want = layer.Expected(one);
    for (const MeshShape& shape : {MeshShape{.tp = 1}, {.tp = 2}, {.tp = 2, .ep = 2}}) {
      SCOPED_TRACE(::testing::Message() << family << " tp " << shape.tp << " ep " << shape.ep);
      const SequenceRows rows = layer.Run(shape);
      ASSERT_EQ(rows.logits.size(), want.size());
      const std::vector<float> got(rows.logits.begin(), rows.logits.end());
      testing::ExpectNear(got.data(), want, "logit");
    }
  }
}

TEST(MtpCopiesTest, HaveTheKindsOfTheirFamily) {
  const auto config_of = [](const char* family) { return MtpCopies(family).config(); };
  const ModelConfig exaone = config_of("exaone_moe");
  EXPECT_TRUE(exaone.layers[0].dense() && !exaone.has_moe());
  EXPECT_EQ(exaone.layers[0].window, 8);
  EXPECT_TRUE(exaone.layers[0].rope);
  EXPECT_FALSE(config_of("exaone_moe_groups").layers[0].rope);  // as the first layer
  const ModelConfig ernie = config_of("ernie4_5_moe");
  EXPECT_TRUE(ernie.layers[0].dense() && !ernie.has_moe());
  const ModelConfig ling = config_of("bailing_moe_v2");
  EXPECT_TRUE(ling.layers[0].moe);
  EXPECT_EQ(ling.first_layer, 3);
  const ModelConfig nemotron = config_of("nemotron_h_latent");
  ASSERT_EQ(nemotron.num_layers(), 2);
  EXPECT_TRUE(nemotron.layers[0].attends() && !nemotron.layers[0].feed_forward);
  EXPECT_TRUE(nemotron.layers[1].moe && nemotron.layers[1].dense_beside);
  EXPECT_FALSE(nemotron.layers[1].mixer || nemotron.has_states());
  const ModelConfig v4 = config_of("deepseek_v4");
  EXPECT_TRUE(v4.layers[0].moe && v4.layers[0].sinks && v4.layers[0].window > 0);
  EXPECT_FALSE(v4.has_states() || v4.has_token_routing());
  EXPECT_EQ(v4.hidden_row_width(), 4 * v4.hidden);
  EXPECT_EQ(v4.target_row_width(), 4 * v4.hidden);
}

// Each stream of a token is joined with its own hidden stream. Blocks add 0, and their equal
// weights give each stream the mean of all.
TEST(MtpCopiesTest, JoinEachResidualStream) {
  const std::filesystem::path from = Fixture("../families/deepseek_v4");
  RawTensors tensors = testing::WithMtpLayer(from);
  for (auto& [name, tensor] : tensors)
    if (name.starts_with("mtp.0.hc_attn") || name.starts_with("mtp.0.hc_ffn") ||
        (name.starts_with("mtp.0.") &&
         (name.ends_with("wo_b.weight") || name.ends_with("w2.weight"))))
      std::ranges::fill(tensor.bytes, '\0');
  const testing::TempDir dir;
  testing::WriteModel(from, tensors, dir.path());
  const ModelConfig config = MtpConfigOf(LoadModelConfig(dir.path()));
  const int64_t hidden = config.hidden, width = config.hidden_row_width(), streams = width / hidden,
                tokens = 3;
  testing::RandomTensors random(11);
  random.Add("hidden", {tokens, width}, 0, 2);
  const testing::RawTensor& given = random.tensors.at("hidden");
  const Row rows = ValuesOf(given), embedding = ValuesOf(tensors.at("mtp.0.emb.tok_emb.weight"));
  ForwardBatch batch = testing::PlainBatchOf(Ids(tokens, 3), 0);
  batch.hidden = reinterpret_cast<const float*>(given.bytes.data());
  const testing::PlainLinears linears(tensors);
  RunRankThreads(
      1, SymmetricBytesPerRank(config, {}, {.tp = 1}),
      [&](int rank, std::shared_ptr<SharedArena> arena) {
        const auto comm = RankComm::Create(std::move(arena), {.tp = 1}, rank);
        ThreadPool pool(1);
        ModelOptions options{.dtype = DType::kF32, .max_tokens = 32};
        options.keeps_hidden = true;
        Model model(dir.path(), config, options, *comm, pool);
        KvStorage kv(config, comm->mesh, std::size(testing::kPlainPages), kPageSize, DType::kF32);
        model.Forward(batch, kv);
        for (int64_t t = 0; t < tokens; ++t) {
          const Row e = linears.Norm(PartOf(embedding, batch.tokens[t] * hidden, hidden),
                                     "mtp.0.enorm", config.norm_eps);
          Row mean(hidden);
          for (int64_t i = 0; i < streams; ++i)
            testing::AddTo(
                mean, linears.Project("mtp.0.h_proj",
                                      linears.Norm(PartOf(rows, t * width + i * hidden, hidden),
                                                   "mtp.0.hnorm", config.norm_eps)));
          for (double& value : mean) value /= static_cast<double>(streams);
          testing::AddTo(mean, linears.Project("mtp.0.e_proj", e));
          for (int64_t i = 0; i < streams; ++i)
            testing::ExpectNear(model.hidden() + t * width + i * hidden, mean, "stream");
        }
      });
}

TEST(MtpCopiesTest, RefuseLayersWithRecurrentStates) {
  const auto error_of = [](const char* family, const char* settings) {
    const ModelConfig target =
        LoadModelConfig(Fixture(std::string("../families/") + family), settings);
    return ErrorOf([&] { MtpConfigOf(target); });
  };
  EXPECT_THAT(error_of("nemotron_h", R"({"num_nextn_predict_layers": 1,
                                         "mtp_layers_block_type": ["linear_attention", "moe"]})"),
              HasSubstr("want attention, no recurrent state"));
  EXPECT_THAT(error_of("nemotron_h", R"({"num_nextn_predict_layers": 1,
                                         "mtp_layers_block_type": ["moe"]})"),
              HasSubstr("want attention, no recurrent state"));
  EXPECT_THAT(error_of("nemotron_h", "{}"), HasSubstr("config.json says that it has none"));
  EXPECT_THAT(error_of("deepseek_v4", R"({"layer_types": [
                          "sliding_attention", "sliding_attention", "sliding_attention",
                          "sliding_attention", "compressed_sparse_attention"]})"),
              HasSubstr("want attention, no recurrent state"));
}

}  // namespace
}  // namespace switchyard
