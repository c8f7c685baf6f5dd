// A model's pass is aborted by its number, on every rank, and runs again.
#include <gtest/gtest.h>

#include "model/test_layouts.h"

namespace switchyard {
namespace {

// Runs passes of a rank. Each one is first aborted before operation `first`, then before operation
// first + `stride`, and so on, until it ends.
class ForwardWithAborts {
 public:
  ForwardWithAborts(ModelOptions& options, int first, int stride) : first_(first), stride_(stride) {
    options.before_operation = [this](uint64_t pass, int, const schedule::Operation&) {
      model_->AbortPass(pass + 1000);  // not in flight
      if (left_-- == 0) model_->AbortPass(pass);
    };
  }
  ~ForwardWithAborts() { EXPECT_GE(aborts_, passes_); }
  ForwardWithAborts(const ForwardWithAborts&) = delete;
  ForwardWithAborts& operator=(const ForwardWithAborts&) = delete;

  std::span<const float> operator()(Model& model, ForwardBatch& batch, KvStorage& kv) {
    model_ = &model;
    ++passes_;
    for (int abort = first_;; abort += stride_) {
      batch.pass = ++number_;
      left_ = abort;
      const std::span<const float> logits = model.Forward(batch, kv);
      if (!model.aborted()) return logits;
      EXPECT_TRUE(logits.empty());
      ++aborts_;
    }
  }

 private:
  const int first_, stride_;
  Model* model_ = nullptr;
  int left_ = 0;  // operations before the abort
  uint64_t number_ = 0;
  int passes_ = 0, aborts_ = 0;
};

void ExpectSameBitsAfterAborts(const Case& c, int first, int stride) {
  SCOPED_TRACE(::testing::Message() << c);
  const auto with_aborts = RunBy(c, ManyTexts(c.dp), [&](ModelOptions& options) {
    return ForwardWithAborts(options, first, stride);
  });
  EXPECT_TRUE(with_aborts == Run(c, ManyTexts(c.dp)));
}

TEST(AbortPass, AnAbortedPassRunsAgainWithTheSameBits) {
  std::vector<Case> cases = {{"llama", 2, 1}, {"qwen2_moe", 2, 2}};
  for (const auto& [backend, mode] : RowBackends())
    cases.push_back(
        {.fixture = "deepseek_v3", .tp = 4, .ep = 2, .backend = backend, .mode = mode, .dp = 2});
  for (Case c : cases) {
    for (const bool two : {false, true}) {
      c.two_batches = two;
      c.round_tokens = 8192;
      ExpectSameBitsAfterAborts(c, 0, 7);
      c.round_tokens = 3;  // with small rounds, layers run all their stages in one operation
      ExpectSameBitsAfterAborts(c, 3, 11);
    }
  }
}

}  // namespace
}  // namespace switchyard
