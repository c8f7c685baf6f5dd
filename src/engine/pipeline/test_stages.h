// Engines of two pipeline stages over fake models, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/fake_forward.h"
#include "engine/rank_engine.h"

namespace switchyard {

// Each stage computes all logits, but only the last one returns them. With Options::launches, all
// stages run passes ahead, and the last one samples tokens.
class StageForward : public FakeForward {
 public:
  StageForward(const Options& options, int passes, bool last, std::deque<std::string>& results)
      : FakeForward(options), passes_(passes), last_(last), results_(results) {}
  std::span<const float> Forward(const ForwardBatch& batch) override {
    const std::span<const float> logits = FakeForward::Forward(batch);
    return last_ ? logits : std::span<const float>();
  }
  bool draws() const override { return last_ && FakeForward::draws(); }
  void Launch(const ForwardBatch& batch) override {
    if (last_) return FakeForward::Launch(batch);
    EXPECT_TRUE(batch.draws.empty());
    Compute(batch);
    ++launched;
    EXPECT_LE(++uncollected_, 2);
  }
  std::span<const int32_t> Collect() override {
    if (last_) return FakeForward::Collect();
    EXPECT_GT(uncollected_--, 0);
    return {};
  }
  int passes_in_flight() const override { return passes_; }
  bool has_logits() const override { return last_; }
  void SendResults(const std::string& bytes) override {
    EXPECT_TRUE(last_);
    most_bytes = std::max(most_bytes, bytes.size());
    results_.push_back(bytes);
    EXPECT_LE(std::ssize(results_), passes_);
  }
  std::string ReceiveResults() override {
    EXPECT_FALSE(last_);
    EXPECT_FALSE(results_.empty());
    std::string bytes = results_.front();
    results_.pop_front();
    return bytes;
  }
  void PassOnResults(const std::string& bytes) override {
    EXPECT_FALSE(last_);
    most_passed_on = std::max(most_passed_on, bytes.size());
  }
  bool sends_values() const override { return sends_values_of_results; }
  std::vector<std::string> RouterFaults(const ForwardBatch& batch) override {
    left_at_collective = results_.size();
    return FakeForward::RouterFaults(batch);
  }
  size_t most_bytes = 0, most_passed_on = 0;  // largest results sent and passed on
  size_t left_at_collective = 0;              // results that were not received before RouterFaults
  bool sends_values_of_results = true;

 private:
  const int passes_;
  const bool last_;
  std::deque<std::string>& results_;
  int uncollected_ = 0;  // launched passes
};

inline RankEngine::Options OptionsWith(int64_t num_pages, int32_t chunk, int32_t max_running) {
  return {.page_size = 4,
          .num_pages = num_pages,
          .max_running_requests = max_running,
          .chunked_prefill_size = chunk,
          .context_length = 160,
          .eos_token_ids = {7},
          .random_seed = 5};
}

// The first and the last stage. Both get the same messages before the same step.
class Stages {
 public:
  Stages(const RankEngine::Options& options, int passes, Pooling pooling = Pooling::kNone,
         bool launches = false)
      : first(ModelOf(options, pooling, launches), passes, /*last=*/false, results),
        last(ModelOf(options, pooling, launches), passes, /*last=*/true, results),
        first_engine(OptionsOfFirst(options), first),
        last_engine(options, last) {
    first.drafts = last.drafts = options.drafter != nullptr;
  }

  void Tell(const std::vector<ControlMessage>& messages) {
    first_engine.Apply(messages);
    last_engine.Apply(messages);
  }
  // At the end of its step, the first stage needs the results of the oldest pass. In this test both
  // stages run on one thread, so the last stage runs first.
  void Step() {
    const StepOutputs of_last = last_engine.Step();
    const StepOutputs of_first = first_engine.Step();
    ASSERT_EQ(of_first.outputs.size(), of_last.outputs.size());
    for (size_t i = 0; i < of_first.outputs.size(); ++i) {
      const RequestOutput &a = of_first.outputs[i], &b = of_last.outputs[i];
      EXPECT_EQ(a.id, b.id);
      EXPECT_EQ(a.new_tokens, b.new_tokens);
      EXPECT_EQ(a.finish, b.finish);
      EXPECT_EQ(a.error, b.error);
      EXPECT_EQ(a.kv.has_value(), b.kv.has_value());
      if (on_output) on_output(a);
      Merge(a);
    }
    ASSERT_EQ(first.fingerprint, last.fingerprint) << "the stages diverged";
  }
  void RunOut() {
    for (int step = 0; last_engine.HasWork(); ++step) {
      ASSERT_LT(step, 100000);
      Step();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_FALSE(first_engine.HasWork());
    EXPECT_TRUE(first_engine.PoolIsWhole());
    EXPECT_TRUE(last_engine.PoolIsWhole());
    EXPECT_TRUE(results.empty());
  }

  std::deque<std::string> results;
  StageForward first, last;
  RankEngine first_engine, last_engine;
  std::map<uint64_t, RequestOutput> seen;
  std::function<void(const RequestOutput&)> on_output;

 private:
  static RankEngine::Options OptionsOfFirst(RankEngine::Options options) {
    if (options.results_have_drafts) options.drafter = nullptr;
    return options;
  }
  static FakeForward::Options ModelOf(const RankEngine::Options& options, Pooling pooling,
                                      bool launches) {
    return {.num_pages = options.num_pages,
            .page_size = options.page_size,
            .launches = launches,
            .pooling = pooling,
            .states = options.num_states,
            .state_chunk = options.state_chunk};
  }
  void Merge(const RequestOutput& news) {
    RequestOutput& all = seen[news.id];
    EXPECT_EQ(all.finish, FinishReason::kNone) << "output after the end of request " << news.id;
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(all.new_tokens, news.new_tokens);
    append(all.input_logprobs, news.input_logprobs);
    append(all.output_logprobs, news.output_logprobs);
    append(all.routed_experts, news.routed_experts);
    append(all.pooled, news.pooled);
    all.finish = news.finish;
    all.error = news.error;
  }
};

}  // namespace switchyard
