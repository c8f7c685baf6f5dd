// Runs the fixtures on any layout of ranks, as threads, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/test_effort.h"
#include "model/model.h"
#include "moe/backends.h"

namespace switchyard {

constexpr int32_t kPageSize = 4;

inline std::filesystem::path Fixture(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
}

// A checkpoint whose layers differ in KV heads, and whose values are narrower than its keys.
constexpr const char* kMixedLayers = "../families/mimo_v2_flash";

struct Case {
  std::string fixture;
  int tp = 1, ep = 1;
  std::string backend = "none", mode = "auto";
  DType dtype = DType::kF32;     // format of exchanged token rows
  DType kv_dtype = DType::kF32;  // format of the cache
  int dp = 1, dense_tp = 0;
  int redundant = 0;  // number of redundant experts
  std::string location = "trivial";
  std::string activations = "auto";  // --quantize-activations
  bool two_batches = false;          // two-batch overlap
  int64_t round_tokens = 8192;       // capacity of deepep's normal mode
  bool single_batch = false;         // single-batch overlap
  std::string combine_rows = "slot";
  int expert_ranks = 0;               // --expert-ranks
  std::vector<int32_t> expert_slots;  // --expert-slots
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.fixture << " tp" << c.tp << " dp" << c.dp << " ep" << c.ep << " dense"
             << c.dense_tp << " " << c.backend << " " << c.mode << " " << Name(c.dtype) << " kv "
             << Name(c.kv_dtype) << " redundant " << c.redundant << " rows " << c.activations
             << (c.two_batches ? " two batches" : "") << " round " << c.round_tokens
             << (c.single_batch ? " single batch" : "") << " by " << c.combine_rows
             << " expert ranks " << c.expert_ranks << " slots "
             << ::testing::PrintToString(c.expert_slots);
}

// A sequence and its schedule: from pass `start` on in chunks of `chunk` rows up to `decode_from`,
// then one row per pass.
struct Text {
  std::vector<int32_t> tokens;
  int chunk = 1 << 20;
  int decode_from = 1 << 20;
  int start = 0;

  int length() const { return static_cast<int>(tokens.size()); }
  int prompt() const { return std::min(length(), decode_from); }
  int passes() const { return start + (prompt() + chunk - 1) / chunk + length() - prompt(); }
  // Rows [begin, end) of a pass.
  std::pair<int, int> Rows(int pass) const {
    const int chunks = (prompt() + chunk - 1) / chunk, i = pass - start;
    if (i < 0 || pass >= passes()) return {0, 0};
    if (i < chunks) return {i * chunk, std::min(prompt(), (i + 1) * chunk)};
    return {prompt() + i - chunks, prompt() + i - chunks + 1};
  }
};
using Group = std::vector<Text>;  // the texts of one attention group

// The outputs for each text.
struct Outcome {
  std::vector<float> logits;            // [T, vocab]
  std::vector<int32_t> routed_experts;  // [T, layers, k]

  bool operator==(const Outcome&) const = default;
};

// One rank's texts. Their pages are in descending order, so a test fails if code assumes ascending
// page numbers.
class Sequences {
 public:
  // `states`: the model has recurrent states. Text i has the slots 2 · i and 2 · i + 1 in turn.
  explicit Sequences(const Group& texts, bool states = false)
      : texts_(texts), pages_(texts.size()), state_(states ? texts.size() : 0, 1) {
    for (const Text& text : texts) num_pages_ += (text.length() + kPageSize - 1) / kPageSize;
    int next = num_pages_;
    for (size_t i = 0; i < texts.size(); ++i)
      for (int p = 0; p * kPageSize < texts[i].length(); ++p) pages_[i].push_back(--next);
  }

  int num_pages() const { return num_pages_; }
  int64_t num_states() const { return 2 * std::ssize(state_); }

  // All rows of a pass, decoding sequences first.
  const ForwardBatch& Batch(int pass) {
    batch_ = {};
    order_.clear();
    for (const bool decoding : {true, false}) {
      for (size_t i = 0; i < texts_.size(); ++i) {
        const auto [begin, end] = texts_[i].Rows(pass);
        if (begin < end && (begin >= texts_[i].prompt()) == decoding) Add(i, begin, end);
      }
      if (decoding) batch_.decode_tokens = batch_.num_tokens();
    }
    batch_.routed_experts = true;
    return batch_;
  }
  ForwardBatch& batch() { return batch_; }

  void Take(std::span<const float> logits, std::span<const int32_t> routed,
            std::vector<Outcome>& all) const {
    const size_t rows = batch_.tokens.size();
    if (rows == 0) return;
    const size_t vocab = logits.size() / rows, width = routed.size() / rows;
    for (size_t s = 0; s < order_.size(); ++s) {
      const size_t first = batch_.sequences[s].row_begin, count = batch_.sequences[s].rows;
      Outcome& out = all[order_[s]];
      const auto part = logits.subspan(first * vocab, count * vocab);
      out.logits.insert(out.logits.end(), part.begin(), part.end());
      const auto ids = routed.subspan(first * width, count * width);
      out.routed_experts.insert(out.routed_experts.end(), ids.begin(), ids.end());
    }
  }

 private:
  void Add(size_t text, int begin, int end) {
    order_.push_back(text);
    batch_.sequences.push_back({.row_begin = static_cast<int32_t>(batch_.num_tokens()),
                                .rows = end - begin,
                                .kv_len = end,
                                .pages = pages_[text].data()});
    if (!state_.empty()) {
      const auto last = static_cast<int32_t>(2 * text + state_[text]);
      state_[text] = 1 - state_[text];
      batch_.states.push_back({.row_begin = batch_.sequences.back().row_begin,
                               .rows = end - begin,
                               .from = begin == 0 ? -1 : last,
                               .to = static_cast<int32_t>(2 * text + state_[text])});
    }
    for (int i = begin; i < end; ++i) {
      batch_.logit_rows.push_back(static_cast<int32_t>(batch_.num_tokens()));
      batch_.tokens.push_back(texts_[text].tokens[i]);
      batch_.positions.push_back(i);
      batch_.slots.push_back(pages_[text][i / kPageSize] * kPageSize + i % kPageSize);
    }
  }

  const Group& texts_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<int32_t> state_;  // [texts] the slot of the text's state, 0 or 1; or empty
  int num_pages_ = 0;
  ForwardBatch batch_;
  std::vector<size_t> order_;
};

// Runs all groups' texts through a model and returns the outputs of each group's first rank, by
// group and text. Checks that the group's other ranks have the same outputs. On each rank,
// `make(options)` returns a function that runs one pass: f(model, batch, kv), which returns the
// logits.
template <typename Make>
std::vector<std::vector<Outcome>> RunBy(const Case& c, const std::vector<Group>& groups,
                                        const Make& make) {
  const ModelConfig config =
      LoadModelConfig(Fixture(c.fixture), {}, {.activations = c.activations});
  ModelOptions options{.dtype = c.dtype, .max_tokens = 64};
  options.moe.a2a_backend = c.backend;
  options.moe.deepep_mode = c.mode;
  options.moe.num_redundant_experts = c.redundant;
  options.moe.init_expert_location = c.location;
  options.moe.long_seq_per_round_tokens = c.round_tokens;
  options.moe.combine_rows = c.combine_rows;
  options.moe.single_batch_overlap = c.single_batch;
  options.two_batch_overlap = c.two_batches;
  const MeshShape shape{.tp = c.tp,
                        .ep = c.ep,
                        .dp = c.dp,
                        .dense_tp = c.dense_tp,
                        .expert_ranks = c.expert_ranks,
                        .expert_slots = c.expert_slots};
  int passes = 0;
  for (const Group& group : groups)
    for (const Text& text : group) passes = std::max(passes, text.passes());
  std::vector<std::vector<Outcome>> by_rank(c.tp);
  RunRankThreads(c.tp, SymmetricBytesPerRank(config, options, shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   ThreadPool pool(1);
                   const auto comm = RankComm::Create(std::move(arena), shape, rank);
                   ModelOptions own = options;
                   auto forward = make(own);
                   Model model(Fixture(c.fixture), config, own, *comm, pool);
                   std::vector<Sequences> all;
                   for (const Group& group : groups) all.emplace_back(group, config.has_states());
                   Sequences& mine = all[comm->mesh.dp_rank()];
                   KvStorage kv(config, comm->mesh, mine.num_pages(), kPageSize, c.kv_dtype);
                   kv.SetStates(StateStorage(config, comm->mesh, mine.num_states()));
                   by_rank[rank].resize(groups[comm->mesh.dp_rank()].size());
                   for (int pass = 0; pass < passes; ++pass) {
                     std::vector<int64_t> tokens, decoding;
                     for (Sequences& group : all) {
                       tokens.push_back(group.Batch(pass).num_tokens());
                       decoding.push_back(group.batch().decode_tokens);
                     }
                     mine.batch().group_tokens = mine.batch().group_logit_rows = tokens;
                     mine.batch().group_decode_tokens = decoding;
                     const auto logits = forward(model, mine.batch(), kv);
                     mine.Take(logits, model.routed_experts(), by_rank[rank]);
                   }
                 });
  std::vector<std::vector<Outcome>> by_group;
  for (int rank = 0; rank < c.tp; ++rank) {
    if (rank % (c.tp / c.dp) == 0) by_group.push_back(by_rank[rank]);
    EXPECT_EQ(by_group.back(), by_rank[rank]) << "rank " << rank << " differs";
  }
  return by_group;
}

inline std::vector<std::vector<Outcome>> Run(const Case& c, const std::vector<Group>& groups) {
  return RunBy(c, groups, [](ModelOptions&) {
    return
        [](Model& model, ForwardBatch& batch, KvStorage& kv) { return model.Forward(batch, kv); };
  });
}

inline std::vector<int32_t> Ids(int length, int first) {
  std::vector<int32_t> ids(length);
  for (int i = 0; i < length; ++i) ids[i] = (first + 37 * i) % 500;
  return ids;
}

// Groups with one to three texts; every fourth group has none. Some passes have both prompt chunks
// and decode rows. In some passes a group has no rows.
inline std::vector<Group> Groups(int dp) {
  std::vector<Group> groups(dp);
  for (int g = 0; g < dp; ++g) {
    if (g % 4 == 2) continue;
    for (int i = 0; i <= g % 3; ++i)
      groups[g].push_back({.tokens = Ids(9 + 5 * i + g, 11 * g + i),
                           .chunk = 7,
                           .decode_from = 5 + 4 * i,
                           .start = i + g % 2});
  }
  return groups;
}

// Groups with two or three texts each. In some passes a group has a single row.
inline std::vector<Group> ManyTexts(int dp) {
  std::vector<Group> groups(dp);
  for (int g = 0; g < dp; ++g)
    for (int i = 0; i < 3 - g % 2; ++i)
      groups[g].push_back({.tokens = Ids(8 + 3 * i + g, 13 * g + i),
                           .chunk = 5 + i,
                           .decode_from = 4 + 3 * i,
                           .start = i / 2});
  return groups;
}

// Backends that exchange rows, by name and mode.
inline std::vector<std::pair<std::string, std::string>> RowBackends() {
  std::vector<std::pair<std::string, std::string>> found = {
      {"deepep", "normal"}, {"deepep", "low_latency"}, {"deepep", "auto"}};
  const MoeBackends backends = BuiltinMoeBackends();
  for (const auto& [name, backend] : backends.dispatchers.all())
    if (name != "none" && name != "deepep") found.emplace_back(name, "auto");
  for (const auto& [name, backend] : backends.fused.all()) found.emplace_back(name, "auto");
  return found;
}

// Layouts of tests that compare schedules.
inline std::vector<Case> OverlapCases() {
  std::vector<Case> cases;
  for (const char* name : {"qwen3_moe", "deepseek_v3", "gpt_oss", "qwen2_moe", "llama"}) {
    cases.push_back({name, 2, 2, "none"});
    cases.push_back({name, 4, 2, "deepep", "auto"});
  }
  for (const char* name :
       {"mixtral", "olmoe", "deepseek_v2", "deepseek_v3_fp8", "glm4_moe", "qwen3"})
    cases.push_back({name, 2, 2, "deepep", "auto"});
  // All families without recurrent states, with which two-batch overlap is refused.
  const std::vector<std::string> families = {
      "afmoe",      "bailing_moe_v2",   "deepseek_v32",   "dots1",       "ernie4_5_moe",
      "exaone_moe", "flex_olmo",        "glm4_moe_lite",  "glm_moe_dsa", "granitemoe",
      "kimi_k25",   "granitemoeshared", "hunyuan_v1_moe", "llama4_text", "longcat_flash",
      "minimax_m2", "mimo_v2_flash",    "mistral4",       "phimoe",      "solar_open"};
  for (size_t i = 0; i < families.size(); i += kSanitized ? 4 : 1)
    cases.push_back({"../families/" + families[i], 2, 2, "deepep", "auto"});
  for (const auto& [backend, mode] : RowBackends()) {
    cases.push_back({"deepseek_v3", 2, 2, backend, mode});
    cases.push_back({.fixture = "deepseek_v3",
                     .tp = 4,
                     .ep = 4,
                     .backend = backend,
                     .mode = mode,
                     .dtype = DType::kBF16,
                     .dp = 2,
                     .dense_tp = 1});
    cases.push_back({.fixture = "qwen3_moe",
                     .tp = 4,
                     .ep = 2,
                     .backend = backend,
                     .mode = mode,
                     .dp = 4,
                     .round_tokens = 3});
  }
  return cases;
}

}  // namespace switchyard
