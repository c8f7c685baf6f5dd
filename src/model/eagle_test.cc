// Compares EAGLE and EAGLE3 heads with a plain computation, and checks the target's rows that they
// read.
#include <gmock/gmock.h>

#include <cmath>
#include <utility>

#include "core/error.h"
#include "model/config_eagle.h"
#include "model/test_eagle.h"
#include "model/test_layouts.h"
#include "model/test_plain_rows.h"
#include "model/weights/draft_vocabulary.h"

namespace switchyard {
namespace {

using testing::EagleHead;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PlainLinears;
using testing::RawTensors;
using testing::Row;
using testing::ValuesOf;

// The head by its published code (SafeAILab/EAGLE: cnets1.py for EAGLE, cnets.py for EAGLE3), in
// double precision, one row after another.
class PlainHead {
 public:
  PlainHead(const EagleHead& head, const RawTensors& own, const RawTensors& target)
      : head_(head), linears_(own) {
    const bool has_embedding = own.contains("embed_tokens.weight");
    embedding_ = ValuesOf(has_embedding ? own.at("embed_tokens.weight")
                                        : target.at("model.embed_tokens.weight"));
    lm_head_ =
        ValuesOf(own.contains("lm_head.weight")      ? own.at("lm_head.weight")
                 : target.contains("lm_head.weight") ? target.at("lm_head.weight")
                                                     : target.at("model.embed_tokens.weight"));
    hidden_ = std::ssize(ValuesOf(own.at(head.layer + "post_attention_layernorm.weight")));
  }

  // Adds the next position. `hidden`: a row of the target, or the last row of this head.
  void Add(int32_t token, const Row& hidden, bool own) {
    Row e(embedding_.begin() + token * hidden_, embedding_.begin() + (token + 1) * hidden_);
    Row x;
    if (head_.inner_rows) {
      e = Norm(e, head_.layer + "input_layernorm");
      row = own ? hidden : linears_.Project("fc", hidden);
      const Row normed = Norm(row, head_.layer + "hidden_norm");
      if (head_.norm_before_residual) row = normed;
      x = testing::JoinRows(e, normed);
    } else {
      x = row = linears_.Project("fc", testing::JoinRows(e, hidden));
    }
    testing::AddTo(row, linears_.Project(head_.layer + "self_attn.o_proj", Attend(x)));
    testing::AddTo(row, linears_.FeedForward(head_.layer + "mlp.",
                                             Norm(row, head_.layer + "post_attention_layernorm")));
    logits = testing::Multiply(lm_head_, head_.inner_rows ? Norm(row, "norm") : row);
  }

  Row row, logits;  // row and logits of the last position

 private:
  Row Norm(Row x, const std::string& name) const {
    return linears_.Norm(std::move(x), name, EagleHead::kEps);
  }
  Row Rotated(Row x) const {
    constexpr int64_t kDim = EagleHead::kHeadDim, kHalf = kDim / 2;
    for (size_t first = 0; first < x.size(); first += kDim) {
      for (int64_t i = 0; i < kHalf; ++i) {
        const double angle = static_cast<double>(keys_.size()) *
                             std::pow(EagleHead::kTheta, -2.0 * static_cast<double>(i) / kDim);
        const double a = x[first + i], b = x[first + i + kHalf];
        x[first + i] = a * std::cos(angle) - b * std::sin(angle);
        x[first + i + kHalf] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
    return x;
  }
  Row Attend(const Row& x) {
    constexpr int64_t kDim = EagleHead::kHeadDim;
    const Row q = Rotated(linears_.Project(head_.layer + "self_attn.q_proj", x));
    Row k = Rotated(linears_.Project(head_.layer + "self_attn.k_proj", x));
    keys_.push_back(std::move(k));
    values_.push_back(linears_.Project(head_.layer + "self_attn.v_proj", x));
    Row out(q.size());
    for (int64_t h = 0; h < EagleHead::kHeads; ++h) {
      const int64_t kv = h / (EagleHead::kHeads / EagleHead::kKvHeads) * kDim;
      Row weights;
      double sum = 0;
      for (const Row& key : keys_) {
        double score = 0;
        for (int64_t i = 0; i < kDim; ++i) score += q[h * kDim + i] * key[kv + i];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(kDim))));
        sum += weights.back();
      }
      for (size_t p = 0; p < values_.size(); ++p)
        for (int64_t i = 0; i < kDim; ++i)
          out[h * kDim + i] += weights[p] / sum * values_[p][kv + i];
    }
    return out;
  }

  const EagleHead& head_;
  const PlainLinears linears_;
  Row embedding_, lm_head_;
  int64_t hidden_ = 0;
  std::vector<Row> keys_, values_;
};

const char* const kTarget = "qwen3";

// On one rank: runs the target over a prompt, and the head over its rows, then two rows of a chain.
void CompareOnRank(const EagleHead& head, const ModelConfig& target_config,
                   const ModelConfig& config, const std::filesystem::path& dir, RankComm& comm) {
  ThreadPool pool(1);
  ModelOptions options{.dtype = DType::kF32, .max_tokens = 32};
  options.keeps_hidden = true;
  options.kept_inputs = config.eagle->target_layers;
  Model target(Fixture(kTarget), target_config, options, comm, pool);
  options.kept_inputs.clear();
  options.target = &target;
  Model model(dir, config, options, comm, pool);
  KvStorage target_kv(target_config, comm.mesh, std::size(testing::kPlainPages), kPageSize,
                      DType::kF32);
  KvStorage kv(config, comm.mesh, std::size(testing::kPlainPages), kPageSize, DType::kF32);

  const auto tokens = config.reduced_head ? config.reduced_head->tokens : std::vector<int32_t>();
  const RawTensors own = TensorsOf(head, target_config, 1);
  const RawTensors of_target = testing::ReadSafetensors(Fixture(kTarget));
  PlainHead plain(head, own, of_target);
  target.Forward(testing::PlainBatchOf({5, 400, 17, 99, 256, 3}, 0), target_kv);
  const int64_t width = config.target_row_width();
  ForwardBatch batch = testing::PlainBatchOf({400, 17, 99, 256, 3, 42}, 0);
  batch.hidden = target.hidden();
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const float* const row = target.hidden() + static_cast<int64_t>(i) * width;
    plain.Add(batch.tokens[i], Row(row, row + width), /*own=*/false);
  }
  batch.only_logit_rows = true;
  for (const int32_t next : {500, 7, -1}) {
    const std::span<const float> logits = model.Forward(batch, kv);
    Row want = plain.logits;
    for (size_t i = 0; i < tokens.size(); ++i) want[i] = plain.logits[tokens[i]];
    if (!tokens.empty()) want.resize(tokens.size());
    ASSERT_EQ(logits.size(), want.size());
    testing::ExpectNear(logits.data(), want, "logit");
    testing::ExpectNear(model.hidden(), plain.row, "hidden");
    if (next < 0) return;
    batch = testing::PlainBatchOf({next}, batch.positions.back() + 1);
    batch.hidden = model.hidden();
    batch.own_hidden = true;
    plain.Add(next, Row(plain.row), /*own=*/true);
  }
}

// `reduced`: the head has every fifth row of the target's.
void CompareHead(const EagleHead& head, const MeshShape& shape, bool reduced = false) {
  const ModelConfig target = LoadModelConfig(Fixture(kTarget));
  const testing::TempDir dir;
  testing::WriteEagleHead(dir.path(), head, target);
  ModelConfig config = LoadEagleConfig(dir.path(), target, head.inner_rows);
  if (reduced) config.reduced_head = testing::EveryFifthRow(target, Fixture(kTarget));
  CheckCheckpoint(dir.path(), config);
  RunRankThreads(
      shape.tp, SymmetricBytesPerRank(target, {}, shape) + SymmetricBytesPerRank(config, {}, shape),
      [&](int rank, std::shared_ptr<SharedArena> arena) {
        const auto comm = RankComm::Create(std::move(arena), shape, rank);
        CompareOnRank(head, target, config, dir.path(), *comm);
      });
}

TEST(EagleTest, HeadsComputeWhatTheirPublishedCodeDoes) {
  const EagleHead heads[] = {
      {.inner_rows = false, .bias = true, .layer = "layers.0."},
      {.inner_rows = false, .layer = "layers.0."},
      {.layers = {0, 1, 2}, .draft_vocab = 128},
      {.layers = {0, 1, 2}, .bias = true, .norm_before_residual = true, .layer = "layers.0."},
      {.layers = {1, 2}, .draft_vocab = 512},
      {.layers = {0, 2}, .draft_vocab = 100, .hidden = 48},
  };
  for (size_t i = 0; i < std::size(heads); ++i) {
    SCOPED_TRACE(i);
    CompareHead(heads[i], {.tp = 1});
    CompareHead(heads[i], {.tp = 2});
    if (heads[i].draft_vocab == 0) CompareHead(heads[i], {.tp = 2}, /*reduced=*/true);
  }
}

// For each text, the rows of Model::hidden with the inputs of `layers`.
std::vector<std::vector<Outcome>> KeptInputs(const Case& c, const std::vector<Group>& groups,
                                             const std::vector<int64_t>& layers) {
  return RunBy(c, groups, [&](ModelOptions& options) {
    options.keeps_hidden = true;
    options.kept_inputs = layers;
    return [width = layers.size()](Model& model, ForwardBatch& batch, KvStorage& kv) {
      model.Forward(batch, kv);
      const size_t floats = batch.tokens.size() * width * model.config().hidden;
      return std::span<const float>(model.hidden(), floats);
    };
  });
}

// Rows after the final norm.
std::vector<std::vector<Outcome>> NormedRows(const Case& c, const std::vector<Group>& groups) {
  return RunBy(c, groups, [](ModelOptions& options) {
    options.keeps_hidden = true;
    return [](Model& model, ForwardBatch& batch, KvStorage& kv) {
      model.Forward(batch, kv);
      return std::span<const float>(model.hidden(), batch.tokens.size() * model.config().hidden);
    };
  });
}

// The input of the last layer is the output of a model without this layer.
TEST(EagleTest, TheTargetKeepsTheInputsOfItsLayers) {
  const std::vector<Group> groups = Groups(1);
  for (const char* name : {"llama", "deepseek_v3"}) {
    SCOPED_TRACE(name);
    const ModelConfig config = LoadModelConfig(Fixture(name));
    const int64_t hidden = config.hidden, layers = config.num_layers();
    const testing::TempDir shorter;
    auto settings = nlohmann::json::parse(testing::ReadBytes(Fixture(name) / "config.json"));
    settings["num_hidden_layers"] = layers - 1;
    testing::WriteBytes(shorter.path() / "config.json", settings.dump());
    const RawTensors tensors = testing::ReadSafetensors(Fixture(name));
    testing::WriteSafetensors(shorter.path() / "model.safetensors", tensors);

    const auto kept = KeptInputs({.fixture = name}, groups, {0, layers - 1, layers});
    const auto all = NormedRows({.fixture = name}, groups);
    const auto without_last = NormedRows({.fixture = shorter.path().string()}, groups);
    const Row embedding = ValuesOf(tensors.at("model.embed_tokens.weight"));
    const Row weight = ValuesOf(tensors.at("model.norm.weight"));
    const auto expect_normed = [&](const float* x, const float* normed) {
      double squares = 0;
      for (int64_t i = 0; i < hidden; ++i) squares += static_cast<double>(x[i]) * x[i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + config.norm_eps);
      for (int64_t i = 0; i < hidden; ++i) ASSERT_NEAR(x[i] * scale * weight[i], normed[i], 1e-4);
    };
    for (size_t text = 0; text < groups[0].size(); ++text) {
      for (int64_t t = 0; t < groups[0][text].length(); ++t) {
        const float* const row = kept[0][text].logits.data() + t * 3 * hidden;
        for (int64_t i = 0; i < hidden; ++i)
          ASSERT_EQ(row[i], embedding[groups[0][text].tokens[t] * hidden + i]);
        expect_normed(row + hidden, without_last[0][text].logits.data() + t * hidden);
        expect_normed(row + 2 * hidden, all[0][text].logits.data() + t * hidden);
      }
    }
  }
}

TEST(EagleTest, KeptInputsDoNotDependOnTheLayout) {
  const std::vector<Group> groups = ManyTexts(2);
  const Case plain{
      .fixture = "deepseek_v3", .tp = 2, .ep = 2, .backend = "deepep", .dp = 2, .dense_tp = 1};
  const auto want = KeptInputs(plain, groups, {1, 2});
  Case two_batches = plain;
  two_batches.two_batches = true;
  EXPECT_EQ(KeptInputs(two_batches, groups, {1, 2}), want);
  const auto alone = KeptInputs({.fixture = "deepseek_v3"}, {groups[1]}, {1, 2});
  ASSERT_EQ(alone[0].size(), want[1].size());
  for (size_t i = 0; i < alone[0].size(); ++i) EXPECT_EQ(alone[0][i].logits, want[1][i].logits);
}

// The message for a head with this change of its config.json.
std::string ErrorOf(const nlohmann::json& change, bool inner_rows = true) {
  const ModelConfig target = LoadModelConfig(Fixture("deepseek_v3"));
  const testing::TempDir dir;
  nlohmann::json config =
      ConfigOf(EagleHead{.inner_rows = inner_rows, .layers = {0, 1, 2}}, target);
  config.update(change);
  testing::WriteBytes(dir.path() / "config.json", config.dump());
  try {
    LoadEagleConfig(dir.path(), target, inner_rows);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(EagleConfigTest, UnfitHeadsAreRefusedByName) {
  const auto none = nlohmann::json::object();
  EXPECT_EQ(ErrorOf(none), "no error");
  EXPECT_THAT(ErrorOf({{"architectures", {"Eagle3DeepseekV2ForCausalLM"}}}),
              HasSubstr("architectures is \"Eagle3DeepseekV2ForCausalLM\""));
  EXPECT_THAT(ErrorOf({{"num_hidden_layers", 2}}), HasSubstr("num_hidden_layers is 2"));
  EXPECT_THAT(ErrorOf({{"vocab_size", 500}}), HasSubstr("vocab_size is 500"));
  EXPECT_THAT(ErrorOf({{"hidden_size", 32}}), HasSubstr("hidden_size is 32"));
  EXPECT_THAT(ErrorOf({{"target_hidden_size", 32}}), HasSubstr("target_hidden_size is 32"));
  EXPECT_THAT(ErrorOf({{"hidden_size", 32}, {"target_hidden_size", 64}}),
              HasSubstr("want draft_vocab_size"));
  EXPECT_THAT(ErrorOf({{"tie_word_embeddings", true}}), HasSubstr("tie_word_embeddings is true"));
  EXPECT_THAT(ErrorOf({{"norm_before_fc", true}}), HasSubstr("norm_before_fc is true"));
  EXPECT_THAT(ErrorOf({{"draft_vocab_size", 513}}), HasSubstr("draft_vocab_size is 513"));
  EXPECT_THAT(ErrorOf({{"eagle_config", {{"use_aux_hidden_state", false}}}}),
              HasSubstr("eagle_config.use_aux_hidden_state is false"));
  EXPECT_THAT(ErrorOf({{"eagle_config", {{"eagle_aux_hidden_state_layer_ids", {0, 1, 3}}}}}),
              HasSubstr("layers 1, 2, 4 of the target, which has 3"));
  EXPECT_THAT(ErrorOf({{"speculators_config", nlohmann::json::object()}}),
              HasSubstr("speculators"));
  EXPECT_EQ(ErrorOf(none, /*inner_rows=*/false), "no error");
  EXPECT_THAT(ErrorOf({{"hidden_size", 32}}, false), HasSubstr("hidden_size is 32"));
  EXPECT_THAT(ErrorOf({{"draft_vocab_size", 100}}, false), HasSubstr("draft_vocab_size: an EAGLE"));
}

TEST(EagleConfigTest, WithoutLayersTheyAreThoseOfOtherServers) {
  ModelConfig target = LoadModelConfig(Fixture("deepseek_v3"));
  const testing::TempDir dir;
  testing::WriteBytes(dir.path() / "config.json", ConfigOf(EagleHead{}, target).dump());
  EXPECT_THAT(LoadEagleConfig(dir.path(), target, true).eagle->target_layers, ElementsAre(0, 1, 2));
  target.layers.resize(32);
  EXPECT_THAT(LoadEagleConfig(dir.path(), target, true).eagle->target_layers,
              ElementsAre(2, 16, 29));
}

TEST(EagleConfigTest, TheTableOfTokensIsChecked) {
  const ModelConfig target = LoadModelConfig(Fixture("deepseek_v3"));
  const EagleHead head{.layers = {0, 1, 2}, .draft_vocab = 4};
  const testing::TempDir dir;
  testing::WriteEagleHead(dir.path(), head, target);
  const ModelConfig config = LoadEagleConfig(dir.path(), target, true);
  EXPECT_THAT(LoadDraftVocabulary(dir.path(), config), ElementsAre(0, 128, 256, 384));
  EXPECT_THAT(LoadDraftVocabulary(dir.path(), config, /*read_data=*/false),
              ElementsAre(0, 1, 2, 3));
  const auto message = [&](const std::function<void(RawTensors&)>& change) -> std::string {
    RawTensors tensors = TensorsOf(head, target, 1);
    change(tensors);
    testing::WriteSafetensors(dir.path() / "model.safetensors", tensors);
    try {
      LoadDraftVocabulary(dir.path(), config);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([](RawTensors& t) { t.erase("d2t"); }), HasSubstr("\"d2t\" is missing"));
  EXPECT_THAT(message([](RawTensors& t) { t["d2t"].dtype = "F64"; }), HasSubstr("F64"));
  EXPECT_THAT(message([](RawTensors& t) {
                t["d2t"] = {"I32", {8}, t["d2t"].bytes};
              }),
              HasSubstr("want int64 or int32 [4]"));
  EXPECT_THAT(message([](RawTensors& t) { t["d2t"].bytes[1] = 2; }),
              HasSubstr("gives row 0 the offset 512"));
}

}  // namespace
}  // namespace switchyard
