// Models with an indexer (DeepSeek Sparse Attention). Their logits are compared with those of
// transformers in tests/e2e/test_families.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "core/error.h"
#include "core/format.h"
#include "model/families/family.h"
#include "model/test_layouts.h"
#include "model/test_mtp_layer.h"
#include "model/weights.h"
#include "model/weights/safetensors.h"
#include "model/weights/testing.h"

namespace switchyard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::ReadBytes;
using testing::ReadSafetensors;
using testing::WriteBytes;
using testing::WriteSafetensors;

std::string ErrorOf(const std::string& config) {
  try {
    ParseModelConfig(config);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

constexpr const char* kSparse[] = {"../families/deepseek_v32", "../families/glm_moe_dsa_shared"};

// A copy of a checkpoint with some settings changed. `keeps_indexers`: whether it has the tensors
// of the indexers.
void Copy(const std::string& from, const json& changes, bool keeps_indexers,
          const std::filesystem::path& to) {
  json config = json::parse(ReadBytes(Fixture(from) / "config.json"));
  for (const auto& item : changes.items()) {
    if (item.value().is_null()) {
      config.erase(item.key());
    } else {
      config[item.key()] = item.value();
    }
  }
  WriteBytes(to / "config.json", config.dump());
  auto tensors = ReadSafetensors(Fixture(from));
  if (!keeps_indexers)
    std::erase_if(tensors, [](const auto& tensor) {
      return tensor.first.find(".indexer.") != std::string::npos;
    });
  WriteSafetensors(to / "model.safetensors", tensors);
}

// Changes that make a model of DeepSeek-V3 of it, with attention to all keys.
json Dense() {
  json changes = {{"architectures", json::array({"DeepseekV3ForCausalLM"})},
                  {"model_type", "deepseek_v3"}};
  for (const char* key : {"index_topk", "index_n_heads", "index_head_dim", "layer_types",
                          "indexer_types", "indexer_rope_interleave"})
    changes[key] = nullptr;
  return changes;
}

std::vector<Group> Texts(int dp) {
  std::vector<Group> groups(dp);
  for (int g = 0; g < dp; ++g)
    for (int i = 0; i < 2; ++i)
      groups[g].push_back({.tokens = Ids(23 + 4 * i + g, 5 * g + i),
                           .chunk = 6 + i,
                           .decode_from = 15 + 3 * i,
                           .start = i});
  return groups;
}

TEST(SparseAttentionTest, AnIndexThatSelectsEverythingGivesTheBitsOfDenseAttention) {
  for (const char* name : kSparse) {
    SCOPED_TRACE(name);
    const testing::TempDir dense, all, exactly;
    Copy(name, Dense(), false, dense.path());
    Copy(name, json::object({{"index_topk", 4096}}), true, all.path());
    Copy(name, json::object({{"index_topk", 27}}), true, exactly.path());  // the longest text
    for (Case c : {Case{.tp = 1}, Case{.tp = 2, .ep = 2, .backend = "deepep"},
                   Case{.tp = 2, .kv_dtype = DType::kBF16}}) {
      const auto run = [&](const std::filesystem::path& dir) {
        c.fixture = dir;
        return switchyard::Run(c, Texts(c.dp));
      };
      const auto want = run(dense.path());
      EXPECT_EQ(want, run(all.path())) << c;
      EXPECT_EQ(want, run(exactly.path())) << c;
      EXPECT_NE(want, run(name)) << "the checkpoint selects all keys";
    }
  }
}

// The logits of each text alone, in one chunk.
std::vector<std::vector<Outcome>> Alone(Case c, const std::vector<Group>& groups) {
  c = {.fixture = c.fixture, .dtype = c.dtype, .kv_dtype = c.kv_dtype};
  std::vector<std::vector<Outcome>> all;
  for (const Group& group : groups) {
    all.emplace_back();
    for (const Text& text : group)
      all.back().push_back(switchyard::Run(c, {{{.tokens = text.tokens}}})[0][0]);
  }
  return all;
}

TEST(SparseAttentionTest, ChunksDecodeStepsAndLayoutsGiveTheSameBits) {
  for (const char* name : kSparse) {
    for (const Case& c :
         {Case{.fixture = name}, Case{.fixture = name, .kv_dtype = DType::kI8},
          Case{.fixture = name, .tp = 2, .ep = 2, .backend = "deepep", .dp = 2, .dense_tp = 1},
          Case{.fixture = name, .two_batches = true}})
      EXPECT_EQ(switchyard::Run(c, Texts(c.dp)), Alone(c, Texts(c.dp))) << c;
    // Two ranks add the heads of attention in another order than one.
    const Case two = {.fixture = name, .tp = 2};
    Case exchanged = {.fixture = name, .tp = 2, .ep = 2, .backend = "deepep"};
    const auto want = switchyard::Run(two, Texts(1));
    for (const char* mode : {"normal", "low_latency"}) {
      exchanged.mode = mode;
      const auto got = switchyard::Run(exchanged, Texts(1));
      ASSERT_EQ(got[0].size(), want[0].size());
      for (size_t i = 0; i < got[0].size(); ++i)
        for (size_t j = 0; j < got[0][i].logits.size(); ++j)
          ASSERT_NEAR(got[0][i].logits[j], want[0][i].logits[j], 2e-4);
    }
  }
}

// A tensor of reference.safetensors as float32 or int64.
template <typename T>
std::vector<T> ReferenceOf(const std::filesystem::path& dir, const std::string& name) {
  const std::string path = dir / "reference.safetensors", bytes = ReadBytes(path);
  const std::span data(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  const TensorEntry entry = ParseSafetensorsHeader(data, bytes.size(), path).at(name);
  std::vector<T> values((entry.end - entry.begin) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + entry.begin, entry.end - entry.begin);
  return values;
}

// Prompts in one chunk, and their greedy tokens in decode steps. No selection of the references is
// within 1e-6 of another one (make_families.py).
void ExpectReference(const Case& c) {
  const std::filesystem::path dir = Fixture(c.fixture);
  std::vector<std::vector<int64_t>> prompts, greedy;
  Group group;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back(ReferenceOf<int64_t>(dir, fmt::format("prompt.{}", i)));
    greedy.push_back(ReferenceOf<int64_t>(dir, fmt::format("generated.{}", i)));
    Text text{.tokens = {prompts[i].begin(), prompts[i].end()}};
    text.decode_from = text.length();
    text.tokens.insert(text.tokens.end(), greedy[i].begin(), greedy[i].end());
    group.push_back(text);
  }
  const auto outcomes = switchyard::Run(c, {group});
  for (int i = 0; i < 3; ++i) {
    const auto expected = ReferenceOf<float>(dir, fmt::format("logits.{}", i));
    const std::vector<float>& logits = outcomes[0][i].logits;
    for (size_t j = 0; j < expected.size(); ++j) ASSERT_NEAR(logits[j], expected[j], 2e-4) << c;
    const auto vocab = static_cast<int64_t>(expected.size() / prompts[i].size());
    for (int64_t j = 0; j < std::ssize(greedy[i]); ++j) {
      const auto row = logits.begin() + (std::ssize(prompts[i]) + j - 1) * vocab;
      EXPECT_EQ(std::max_element(row, row + vocab) - row, greedy[i][j]) << c;
    }
  }
}

TEST(SparseAttentionTest, LogitsAreThoseOfTransformers) {
  for (const char* name :
       {"deepseek_v32", "deepseek_v32_yarn", "glm_moe_dsa", "glm_moe_dsa_shared"}) {
    const std::string fixture = std::string("../families/") + name;
    ExpectReference({.fixture = fixture});
    ExpectReference({.fixture = fixture, .tp = 2});
    ExpectReference({.fixture = fixture, .tp = 2, .ep = 2, .backend = "deepep"});
  }
}

TEST(SparseAttentionTest, IndexersWithoutSettingsAreRefused) {
  const testing::TempDir dir;
  Copy(kSparse[0], Dense(), true, dir.path());
  try {
    CheckCheckpoint(dir.path(), LoadModelConfig(dir.path()));
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("model.layers.0.self_attn.indexer."));
    EXPECT_THAT(e.what(), HasSubstr("index_topk"));
  }
}

TEST(SparseAttentionTest, TheCacheHasTheKeysOfTheIndex) {
  const ModelConfig sparse = LoadModelConfig(Fixture(kSparse[0]));
  ModelConfig dense = sparse;
  dense.attention.index_topk = 0;
  const auto more = [&](DType dtype) {
    return KvStorage::BytesPerToken(sparse, Mesh(), dtype) -
           KvStorage::BytesPerToken(dense, Mesh(), dtype);
  };
  const auto keys = static_cast<size_t>(sparse.num_layers() * sparse.attention.index_head_dim);
  EXPECT_EQ(more(DType::kBF16), 2 * keys);
  EXPECT_EQ(more(DType::kI8), keys + sparse.num_layers() * sizeof(float));  // with a row's scale
}

// An MTP layer under the published names, which differ in the embedding and the head.
TEST(SparseAttentionTest, AnMtpLayerHasThePublishedNames) {
  for (const char* name : kSparse) {
    for (const bool own_vocabulary : {false, true}) {
      const testing::TempDir dir;
      testing::WriteMtpLayer(Fixture(name), {.from = 2, .own_vocabulary = own_vocabulary},
                             dir.path());
      const ModelConfig mtp = MtpConfigOf(LoadModelConfig(dir.path()));
      CheckCheckpoint(dir.path(), mtp);
      const ModelWeights weights = LoadWeights(dir.path(), mtp, Mesh(), {});
      ASSERT_TRUE(weights.layers[0].latent.index && weights.hidden_input) << name;
      auto tensors = ReadSafetensors(dir.path());
      const std::string key =
          fmt::format("model.layers.{}.self_attn.indexer.wk.weight", mtp.first_layer);
      ASSERT_EQ(tensors.erase(key), 1u);
      WriteSafetensors(dir.path() / "model.safetensors", tensors);
      try {
        CheckCheckpoint(dir.path(), mtp);
        FAIL() << "accepted";
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), HasSubstr(key));
      }
    }
  }
}

// Two sequences of an MTP layer that attends to at most four selected keys. The first pass has the
// rows of 9 and of 3 tokens, and each further one a row of a draft. The last one has only a row of
// the second sequence.
struct DraftPasses {
  static constexpr int32_t kPages[] = {0, 1, 2, 3, 7, 6, 5, 4};
  int32_t lengths[2] = {9, 3};

  ForwardBatch Next(int pass) {
    ForwardBatch batch;
    batch.pass = pass + 1;
    batch.only_logit_rows = true;
    batch.own_hidden = pass > 0;
    for (int i = pass < kPasses - 1 ? 0 : 1; i < 2; ++i) {
      const int32_t* const pages = kPages + 4 * i;
      const int32_t begin = pass > 0 ? lengths[i]++ : 0;
      batch.sequences.push_back({.row_begin = static_cast<int32_t>(batch.num_tokens()),
                                 .rows = lengths[i] - begin,
                                 .kv_len = lengths[i],
                                 .pages = pages});
      for (int32_t position = begin; position < lengths[i]; ++position) {
        // The hidden rows of the pass before are those of its logit rows.
        batch.hidden_rows.push_back(pass > 0 ? i : static_cast<int32_t>(batch.num_tokens()));
        batch.tokens.push_back((100 * i + 37 * position) % 500);
        batch.positions.push_back(position);
        batch.slots.push_back(pages[position / kPageSize] * kPageSize + position % kPageSize);
      }
      batch.logit_rows.push_back(static_cast<int32_t>(batch.num_tokens() - 1));
    }
    return batch;
  }
  static constexpr int kPasses = 6;
};

// The logits of all passes.
std::vector<std::vector<float>> DraftLogits(const std::filesystem::path& dir) {
  const ModelConfig config = MtpConfigOf(LoadModelConfig(dir));
  const ModelOptions options{.dtype = DType::kF32, .max_tokens = 32, .keeps_hidden = true};
  std::vector<std::vector<float>> all;
  RunRankThreads(1, SymmetricBytesPerRank(config, options, {}),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   ThreadPool pool(1);
                   const auto comm = RankComm::Create(std::move(arena), {}, rank);
                   Model model(dir, config, options, *comm, pool);
                   KvStorage kv(config, comm->mesh, std::size(DraftPasses::kPages), kPageSize,
                                DType::kF32);
                   std::vector<float> hidden(12 * config.hidden);
                   for (size_t i = 0; i < hidden.size(); ++i)
                     hidden[i] = static_cast<float>((i * 7919) % 101) / 50.0f - 1.0f;
                   DraftPasses passes;
                   for (int pass = 0; pass < DraftPasses::kPasses; ++pass) {
                     ForwardBatch batch = passes.Next(pass);
                     batch.hidden = pass > 0 ? model.hidden() : hidden.data();
                     const auto logits = model.Forward(batch, kv);
                     all.emplace_back(logits.begin(), logits.end());
                   }
                 });
  return all;
}

TEST(SparseAttentionTest, DraftsMayShareTheKeysOfTheFirstOne) {
  const std::filesystem::path from = Fixture("../families/glm_moe_dsa_shared");
  // `constant`: all scores are 0, so each selection has the first four keys.
  const auto logits = [&](bool shares, bool constant) {
    testing::MtpLayer layer = {.from = 2};
    layer.settings["index_share_for_mtp_iteration"] = shares;
    auto tensors = testing::WithMtpLayer(from, layer);
    if (constant) {
      std::string& bytes = tensors.at("model.layers.4.self_attn.indexer.weights_proj.weight").bytes;
      bytes.assign(bytes.size(), '\0');
    }
    const testing::TempDir dir;
    WriteBytes(dir.path() / "config.json", testing::SettingsOf(from, layer).dump());
    WriteSafetensors(dir.path() / "model.safetensors", tensors);
    return DraftLogits(dir.path());
  };
  EXPECT_EQ(logits(false, true), logits(true, true));
  const auto own = logits(false, false), shared = logits(true, false);
  const size_t vocab = own[0].size() / 2;
  const auto same = [&](int pass, int row) {
    return std::equal(own[pass].begin() + row * vocab, own[pass].begin() + (row + 1) * vocab,
                      shared[pass].begin() + row * vocab);
  };
  EXPECT_TRUE(same(0, 0) && same(0, 1));
  // The second sequence has 4 keys in pass 1, and attends to all of them.
  EXPECT_TRUE(same(1, 1));
  EXPECT_FALSE(same(1, 0)) << "the first draft's selection of 9 keys is used for 10 keys";
  EXPECT_FALSE(same(2, 0));
}

constexpr const char* kDeepSeekV32 = R"({
    "architectures": ["DeepseekV32ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "index_head_dim": 128, "index_n_heads": 64,
    "index_topk": 2048, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "model_type": "deepseek_v32",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
    "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
    "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
    "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128,
    "vocab_size": 129280})";

// The MTP layer follows the last one. It has experts, and an indexer with its own cached keys.
void ExpectMtpLayer(const ModelConfig& target, int64_t number) {
  const ModelConfig mtp = MtpConfigOf(target);
  ASSERT_EQ(mtp.num_layers(), 1);
  EXPECT_TRUE(mtp.is_mtp && mtp.layers[0].moe && mtp.has_indexer(0));
  EXPECT_EQ(LayerPrefix(NamesOf(mtp), mtp.first_layer), fmt::format("model.layers.{}.", number));
  const KvRowBytes bytes = KvStorage::RowBytes(mtp, 0, Mesh(), DType::kBF16);
  EXPECT_EQ(bytes.k, 2 * (512 + 64));
  EXPECT_EQ(bytes.v, 2 * 128);
}

TEST(SparseAttentionConfig, DeepSeekV32) {
  const ModelConfig c = ParseModelConfig(kDeepSeekV32);
  EXPECT_EQ(c.attention.index_topk, 2048);
  EXPECT_EQ(c.attention.index_heads, 64);
  EXPECT_EQ(c.attention.index_head_dim, 128);
  EXPECT_FALSE(c.attention.index_interleaved);
  EXPECT_TRUE(c.rope.interleaved);
  EXPECT_EQ(std::ranges::count_if(c.layers, &LayerConfig::moe), 58);
  EXPECT_TRUE(c.unknown_keys.empty());
  ExpectMtpLayer(c, 61);
  EXPECT_FALSE(MtpConfigOf(c).attention.drafts_share_index);
}

TEST(SparseAttentionConfig, DeepSeekV32RefusesOtherIndices) {
  const auto error = [](const std::string& from, const std::string& to) {
    std::string text = kDeepSeekV32;
    text.replace(text.find(from), from.size(), to);
    return ErrorOf(text);
  };
  EXPECT_THAT(error("\"index_head_dim\": 128", "\"index_head_dim\": 32"),
              HasSubstr("index_head_dim is 32, less than qk_rope_head_dim 64"));
  EXPECT_THAT(error("\"q_lora_rank\": 1536", "\"q_lora_rank\": null"),
              HasSubstr("q_lora_rank is absent"));
  EXPECT_THAT(error("\"index_topk\": 2048", "\"index_topk\": 0"), HasSubstr("index_topk is 0"));
  EXPECT_THAT(error("\"ep_size\": 1", "\"index_topk_freq\": 4"), HasSubstr("index_topk_freq is 4"));
  EXPECT_THAT(error("\"ep_size\": 1", "\"layer_types\": [\"full_attention\"]"),
              HasSubstr("layer_types has 1 entries"));
  EXPECT_THAT(error("\"ep_size\": 1", "\"rope_interleave\": false"),
              HasSubstr("rope_interleave is false"));
}

// GLM-5 and the schedule of GLM-5.2, in which most layers have no indexer.
TEST(SparseAttentionConfig, Glm5) {
  constexpr const char* kGlm = R"({
    "architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": false, "ep_size": 1,
    "eos_token_id": [154820, 154827], "first_k_dense_replace": 3, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 6144, "index_head_dim": 128, "index_n_heads": 32,
    "index_topk": 2048, "indexer_rope_interleave": true, "intermediate_size": 12288,
    "kv_lora_rank": 512, "max_position_embeddings": 202752, "model_type": "glm_moe_dsa",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64,
    "num_experts_per_tok": 8, "num_hidden_layers": 78, "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1, "q_lora_rank": 2048, "qk_head_dim": 256,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
    "rope_interleave": true, "rope_parameters": {"rope_theta": 1000000,
    "rope_type": "default"}, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
    "v_head_dim": 256, "vocab_size": 154880})";
  const auto with = [&](const char* keys) { return std::string(kGlm).insert(1, keys); };
  const auto shared = [&](const char* keys) {
    const ModelConfig c = ParseModelConfig(with(keys));
    EXPECT_TRUE(c.attention.index_interleaved);
    EXPECT_TRUE(c.unknown_keys.empty());
    std::string types;
    for (const LayerConfig& layer : c.layers) types += layer.shared_index ? 'S' : 'F';
    return types.substr(0, 12);
  };
  EXPECT_EQ(shared(""), "FFFFFFFFFFFF");
  constexpr const char* kSchedule = R"("index_topk_freq": 4, "index_skip_topk_offset": 3,)";
  EXPECT_EQ(shared(kSchedule), "FFFSSSFSSSFS");
  // The last layer of this schedule has no indexer, the MTP layer has one.
  for (const bool shares : {false, true}) {
    const std::string key = fmt::format(R"("index_share_for_mtp_iteration": {},)", shares);
    const ModelConfig c = ParseModelConfig(with((kSchedule + key).c_str()));
    EXPECT_TRUE(c.layers.back().shared_index && c.unknown_keys.empty());
    ExpectMtpLayer(c, 78);
    EXPECT_EQ(MtpConfigOf(c).attention.drafts_share_index, shares);
  }
  EXPECT_THAT(ErrorOf(with(R"("index_topk_pattern": "FS",)")), HasSubstr("has 2 entries"));
  EXPECT_THAT(ErrorOf(with(R"("indexer_types": ["full"],)")), HasSubstr("has 1 entries"));
  EXPECT_THAT(ErrorOf(with(R"("index_kpool": 4,)")), HasSubstr("index_kpool is 4"));
  // The error names the key that leaves the first layer without an indexer.
  EXPECT_THAT(ErrorOf(with(R"("index_topk_freq": 4, "index_skip_topk_offset": 0,)")),
              HasSubstr("index_skip_topk_offset: layer 0 has no indexer"));
  EXPECT_THAT(ErrorOf(with(("\"index_topk_pattern\": \"" + std::string(78, 'S') + "\",").c_str())),
              HasSubstr("index_topk_pattern: layer 0 has no indexer"));
}

}  // namespace
}  // namespace switchyard
