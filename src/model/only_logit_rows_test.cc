// If the last layer of a pass computes only the logit rows (ForwardBatch::only_logit_rows), the
// pass gives the same logits, keys and values.
#include "model/test_layouts.h"

namespace switchyard {
namespace {

// The number of logit rows of a text in a pass: 0, 1 or 2 rows at its end, depending on pass and
// text.
int LogitRows(const Group& group, size_t text, int pass) {
  const auto [begin, end] = group[text].Rows(pass);
  return std::min(end - begin, (pass + static_cast<int>(text)) % 3);
}

// Runs one pass with the logits of LogitRows, and returns zeros for the other rows.
class Forward {
 public:
  Forward(const std::vector<Group>& groups, bool only) : groups_(groups), only_(only) {}

  std::span<const float> operator()(Model& model, ForwardBatch& batch, KvStorage& kv) {
    std::vector<int64_t> counts;
    for (const Group& group : groups_) {
      counts.push_back(0);
      for (size_t i = 0; i < group.size(); ++i) counts.back() += LogitRows(group, i, pass_);
    }
    batch.group_logit_rows = counts;
    batch.logit_rows = RowsOf(batch);
    batch.routed_experts = false;
    batch.only_logit_rows = only_;
    const std::span<const float> logits = model.Forward(batch, kv);
    const auto vocab = static_cast<size_t>(model.config().vocab_size);
    all_.assign(batch.tokens.size() * vocab, 0.0f);
    for (size_t i = 0; i < batch.logit_rows.size(); ++i)
      std::ranges::copy(logits.subspan(i * vocab, vocab),
                        all_.begin() + static_cast<std::ptrdiff_t>(batch.logit_rows[i] * vocab));
    ++pass_;
    return all_;
  }

 private:
  // The logit rows of the batch, whose sequences are the texts of one group in another order.
  std::vector<int32_t> RowsOf(const ForwardBatch& batch) const {
    std::vector<int32_t> rows;
    for (const auto& sequence : batch.sequences) {
      const auto [group, text] = Find(batch, sequence);
      const int32_t end = sequence.row_begin + sequence.rows;
      for (int32_t row = end - LogitRows(groups_[group], text, pass_); row < end; ++row)
        rows.push_back(row);
    }
    return rows;
  }
  // The indices (group, text) of a text whose tokens in this pass are those of the sequence.
  std::pair<size_t, size_t> Find(const ForwardBatch& batch,
                                 const kernels::SequenceSpan& sequence) const {
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (size_t i = 0; i < groups_[g].size(); ++i) {
        const auto [begin, end] = groups_[g][i].Rows(pass_);
        if (end - begin == sequence.rows && end == sequence.kv_len &&
            std::equal(groups_[g][i].tokens.begin() + begin, groups_[g][i].tokens.begin() + end,
                       batch.tokens.begin() + sequence.row_begin))
          return {g, i};
      }
    }
    ADD_FAILURE() << "no such text";
    return {};
  }

  const std::vector<Group>& groups_;
  const bool only_;
  int pass_ = 0;
  std::vector<float> all_;
};

std::vector<std::vector<Outcome>> RunRows(const Case& c, const std::vector<Group>& groups,
                                          bool only) {
  return RunBy(c, groups, [&](ModelOptions&) { return Forward(groups, only); });
}

void ExpectNoBitChanges(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c);
  for (const auto& groups : {ManyTexts(c.dp), Groups(c.dp)})
    EXPECT_EQ(RunRows(c, groups, true), RunRows(c, groups, false));
}

// Later passes attend to the keys and values of rows that the last layer skipped. In some passes no
// row needs logits, so the last layer skips all rows.
TEST(OnlyLogitRowsTest, GiveTheSameLogits) {
  for (const char* name : {"deepseek_v3", "qwen3_moe", "gpt_oss", "llama", kMixedLayers,
                           "../families/glm_moe_dsa_shared"}) {
    ExpectNoBitChanges({.fixture = name});
    ExpectNoBitChanges({.fixture = name, .tp = 2, .ep = 2, .kv_dtype = DType::kBF16});
  }
  ExpectNoBitChanges({.fixture = "deepseek_v3", .kv_dtype = DType::kF16});
  for (const auto& [backend, mode] : RowBackends())
    ExpectNoBitChanges({.fixture = "deepseek_v3",
                        .tp = 4,
                        .ep = 4,
                        .backend = backend,
                        .mode = mode,
                        .dp = 2,
                        .dense_tp = 1});
}

}  // namespace
}  // namespace switchyard
