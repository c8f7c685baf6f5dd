// Models with recurrent states: outputs do not depend on chunks, on the batch or on the ranks.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/testing.h"
#include "model/state_storage.h"
#include "model/test_layouts.h"
#include "model/weights/shard.h"
#include "model/weights/testing.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = "../families/qwen3_next";
// One checkpoint for each rule of states; the last one also has latent experts.
constexpr const char* kRules[] = {kModel, "../families/kimi_linear",
                                  "../families/nemotron_h_latent", "../families/bailing_moe_v2_5"};

std::vector<Outcome> RunAlone(const Case& c, const Group& texts) { return Run(c, {texts}).front(); }
std::vector<std::vector<Outcome>> RunGroups(const Case& c, const std::vector<Group>& groups) {
  return Run(c, groups);  // the name is a member of tests
}

// The tensors prompt.i, generated.i and logits.i of reference.safetensors.
template <typename T>
std::vector<T> Reference(const std::string& family, const std::string& tensor) {
  const std::string bytes =
      testing::ReadBytes(Fixture("../families/" + family) / "reference.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto range =
      nlohmann::json::parse(bytes.substr(sizeof header, header)).at(tensor).at("data_offsets");
  const size_t begin = range[0], end = range[1];
  std::vector<T> values((end - begin) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + sizeof header + header + begin, end - begin);
  return values;
}

// The prompts and the tokens that transformers has generated, in chunks and then row by row.
void ExpectReference(const Case& c, const std::string& family) {
  Group texts;
  std::vector<std::vector<float>> wanted;
  for (const std::string i : {"0", "1", "2"}) {
    const auto prompt = Reference<int64_t>(family, "prompt." + i);
    auto generated = Reference<int64_t>(family, "generated." + i);
    generated.resize(12);
    wanted.push_back(Reference<float>(family, "logits." + i));
    Text& text = texts.emplace_back(Text{.tokens = {prompt.begin(), prompt.end()}, .chunk = 5});
    text.tokens.insert(text.tokens.end(), generated.begin(), generated.end());
    text.decode_from = static_cast<int>(prompt.size()) + 3;
  }
  const std::vector<Outcome> outcomes = RunAlone(c, texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<float>&logits = outcomes[i].logits, &want = wanted[i];
    const std::vector<int32_t>& tokens = texts[i].tokens;
    for (size_t n = 0; n < want.size(); ++n) ASSERT_NEAR(logits[n], want[n], 2e-4) << n;
    const size_t vocab = logits.size() / tokens.size();
    for (size_t t = want.size() / vocab; t < tokens.size(); ++t) {
      const float* row = logits.data() + (t - 1) * vocab;
      ASSERT_EQ(std::max_element(row, row + vocab) - row, tokens[t]) << t;
    }
  }
}

TEST(RecurrentModelTest, LogitsAreThoseOfTransformers) {
  for (const std::string family :
       {"qwen3_next", "qwen3_next_dense", "qwen3_5_moe_text", "qwen3_5_moe", "kimi_linear",
        "kimi_linear_layers", "nemotron_h", "nemotron_h_latent", "bailing_hybrid",
        "bailing_hybrid_layers", "bailing_moe_v2_5", "bailing_moe_v2_5_groups"}) {
    const std::string path = "../families/" + family;
    const bool more = family.size() % 2 == 0;  // both layouts of two ranks occur
    for (const Case& c : {Case{path}, more ? Case{path, 2} : Case{path, 2, 2, "deepep"}}) {
      SCOPED_TRACE(::testing::Message() << c);
      ExpectReference(c, family);
    }
  }
}

TEST(RecurrentModelTest, ChunksAndOtherSequencesDoNotChangeLogits) {
  for (const char* model : kRules) {
    SCOPED_TRACE(model);
    const Case c{.fixture = model};
    const std::vector<int32_t> ids = Ids(29, 3);
    const Outcome whole = RunAlone(c, {{.tokens = ids}}).front();
    for (const int chunk : {1, 5, 28})
      EXPECT_EQ(RunAlone(c, {{.tokens = ids, .chunk = chunk}}).front(), whole) << chunk;
    const auto crowd = RunAlone(c, {{.tokens = Ids(11, 7), .chunk = 4, .decode_from = 9},
                                    {.tokens = ids, .chunk = 9, .decode_from = 20, .start = 2},
                                    {.tokens = Ids(20, 1), .decode_from = 3, .start = 1}});
    EXPECT_EQ(crowd[1], whole);
  }
}

TEST(RecurrentModelTest, DpAttentionHasTheLogitsOfOneRank) {
  const std::vector<Group> groups = Groups(2);
  for (const char* model : kRules) {
    SCOPED_TRACE(model);
    const auto two = RunGroups(
        {.fixture = model, .tp = 2, .ep = 2, .backend = "deepep", .dp = 2, .dense_tp = 1}, groups);
    for (size_t g = 0; g < groups.size(); ++g)
      for (size_t i = 0; i < groups[g].size(); ++i)
        EXPECT_EQ(two[g][i],
                  RunAlone({.fixture = model, .backend = "deepep"}, {groups[g][i]}).front());
  }
}

// Latent experts: the rows that a rank routes are gathered over its MoE-TP group, and large batches
// take several rounds.
TEST(RecurrentModelTest, LatentExpertsHaveTheLogitsOfTransformersInEachExchange) {
  const std::string family = "nemotron_h_latent", path = "../families/" + family;
  for (const Case& c :
       {Case{.fixture = path, .tp = 2, .backend = "deepep"},
        Case{.fixture = path, .tp = 2, .ep = 2, .backend = "deepep", .round_tokens = 3}}) {
    SCOPED_TRACE(::testing::Message() << c);
    ExpectReference(c, family);
  }
}

TEST(RecurrentModelTest, ASlotHasTheStatesOfTheRanksHeads) {
  const ModelConfig config = LoadModelConfig(Fixture(kModel));
  const LinearAttentionConfig& l = *config.linear;
  const auto layers = std::ranges::count_if(config.layers, &LayerConfig::linear);
  const int64_t floats =
      (l.conv_width - 1) * (2 * l.key_heads * l.key_dim + l.value_heads * l.value_dim) +
      l.value_heads * l.key_dim * l.value_dim;
  const size_t bytes = StateStorage::BytesPerSlot(config, Mesh());
  EXPECT_EQ(bytes, static_cast<size_t>(layers * floats) * sizeof(float));
  EXPECT_EQ(StateStorage::BytesPerSlot(config, Mesh({.tp = 2}, 1)), bytes / 2);
  EXPECT_EQ(KvStorage::BytesPerToken(config, Mesh(), DType::kF32),
            static_cast<size_t>((config.num_layers() - layers) * 2 * config.attention.kv_heads *
                                config.attention.head_dim) *
                sizeof(float));
  EXPECT_THAT(ErrorOf([&] { CheckSplits(config, Mesh({.tp = 4}, 0), false); }),
              HasSubstr("--tp 4 does not divide linear_num_key_heads 2"));
}

}  // namespace
}  // namespace switchyard
