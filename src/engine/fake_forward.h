// A fake model for tests. Its logits depend on every preceding token, read back through the pages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "engine/rank_engine.h"
#include "engine/sampler/sampler.h"
#include "engine/scheduler/batch.h"

namespace switchyard {

// Writes tokens to its own paged store at ForwardBatch::slots and reads histories through
// SequenceSpan::pages. A wrong slot, a page freed too early, a wrongly shared prefix or a missing
// row changes the output.
class FakeForward : public ForwardFunction {
 public:
  struct Options {
    int64_t vocab = 61;
    int64_t num_pages = 0;
    int32_t page_size = 1;
    bool launches = false;  // samples tokens and runs passes ahead, as a GPU rank does
    Pooling pooling = Pooling::kNone;
    int64_t states = 0;  // slots of recurrent states; each holds the hash of all tokens before it
    int32_t state_chunk = 0;  // rows of chunked prompts; a chunked row has another hash
  };
  explicit FakeForward(Options options)
      : options_(options),
        store_(options.num_pages * options.page_size, kNothing),
        states_(options.states),
        sampler_(options.vocab, {}) {}

  int64_t vocab_size() const override { return options_.vocab; }
  Pooling pooling() const override { return options_.pooling; }
  bool draws() const override { return options_.launches; }
  bool launches() const override { return options_.launches; }
  bool launches_together() const override { return together; }
  std::span<const int32_t> drawn() const override { return drawn_; }

  void Launch(const ForwardBatch& batch) override {
    EXPECT_EQ(batch.draws.size(), batch.logit_rows.size());
    EXPECT_FALSE(batch.routed_experts);
    Compute(batch);
    if (after_draw) after_draw(batch.pass);
    pending_.push_back(
        {batch.pass, batch.draws.empty() ? std::vector<int32_t>() : drawn_, batch.slots});
    EXPECT_LE(pending_.size(), 2u);
    ++launched;
  }
  std::span<const int32_t> Collect() override {
    EXPECT_FALSE(pending_.empty());
    collected_ = pending_.front().drawn;
    pending_.pop_front();
    return collected_;
  }
  void AbortPass(uint64_t pass) override {
    if (pass == running_) {
      aborted_ = true;
      return;
    }
    ASSERT_EQ(pending_.size(), 1u);
    EXPECT_EQ(pending_.front().pass, pass);
    pending_.pop_front();
  }
  bool aborted() const override { return aborted_; }

  std::span<const float> Forward(const ForwardBatch& batch) override {
    aborted_ = false;
    running_ = batch.pass;
    if (during) during(batch.pass);
    running_ = 0;
    if (!aborted_) return Compute(batch);
    for (const int32_t slot : batch.slots) store_.at(slot) = kNothing;  // like undefined rows
    for (const auto& span : batch.states) {
      states_.at(span.to) = {};
      for (const auto& copy : span.copies)
        if (copy.slot >= 0) states_.at(copy.slot) = {};
    }
    return {};
  }

  std::span<const float> Compute(const ForwardBatch& batch) {
    CheckShape(batch);
    EXPECT_GT(batch.pass, last_pass_);
    last_pass_ = batch.pass;
    std::vector<int32_t> tokens = batch.tokens;
    for (size_t row = 0; row < batch.token_rows.size(); ++row)
      if (batch.token_rows[row] >= 0) tokens[row] = drawn_.at(batch.token_rows[row]);
    for (int64_t row = 0; row < batch.num_tokens(); ++row) {
      CheckSlot(batch.slots[row]);
      EXPECT_GE(tokens[row], -1);
      store_[batch.slots[row]] = {tokens[row], batch.positions[row], false};
    }
    for (const auto& span : batch.states)
      for (int32_t row = span.row_begin; row < span.row_begin + span.chunked; ++row)
        store_[batch.slots[row]].chunked = true;
    Recur(batch, tokens);
    routed_.clear();
    if (batch.routed_experts)
      for (int64_t row = 0; row < batch.num_tokens(); ++row)
        routed_.insert(routed_.end(), {tokens[row], batch.positions[row]});
    logits_.clear();
    size_t next = 0;
    for (const auto& sequence : batch.sequences) {
      for (; next < batch.logit_rows.size() &&
             batch.logit_rows[next] < sequence.row_begin + sequence.rows;
           ++next) {
        const int32_t length =
            sequence.kv_len - (sequence.row_begin + sequence.rows - 1 - batch.logit_rows[next]);
        AppendLogits(History(sequence, length));
      }
    }
    EXPECT_EQ(next, batch.logit_rows.size());
    most_rows = std::max(most_rows, batch.num_tokens());
    ++passes;
    if (batch.draws.empty() && !batch.logit_rows.empty()) ++passes_with_logits;
    fingerprint = fingerprint * 31 + Fingerprint(batch, options_.page_size);
    Draw(batch.draws, batch.masks ? &batch.masks() : nullptr);
    return batch.draws.empty() ? std::span<const float>(logits_) : std::span<const float>();
  }

  // Fake routing: two "experts" for each row, which are the row's token and position.
  std::span<const int32_t> routed_experts() const override { return routed_; }
  int64_t routed_width() const override { return 2; }
  std::vector<std::string> RouterFaults(const ForwardBatch& batch) override {
    return std::vector<std::string>(batch.sequences.size(), router_fault);
  }

  void MoveRows(std::span<const SlotMove> moves) override {
    for (const SlotMove& move : moves) store_.at(move.to) = store_.at(move.from);
    moved += std::ssize(moves);
  }

  // Copies the rows of the positions [begin, end) of a sequence from another model's store.
  void CopyRows(const FakeForward& from, std::span<const int32_t> from_pages,
                std::span<const int32_t> pages, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      store_.at(SlotOf(pages, i)) = from.store_.at(from.SlotOf(from_pages, i));
  }

  // Copies a recurrent state from another model.
  void CopyState(const FakeForward& from, int32_t from_slot, int32_t slot) {
    states_.at(slot) = from.states_.at(from_slot);
  }

  // Call before a new engine uses this model, because its pass numbers start again at 1. Launched
  // passes that were not collected leave undefined values in their rows.
  void BeginEpoch() {
    last_pass_ = 0;
    for (const Pending& pass : pending_)
      for (const int32_t slot : pass.slots) store_.at(slot) = kNothing;
    pending_.clear();
  }

  // The expected logits after a history.
  std::vector<float> LogitsAfter(std::span<const int32_t> tokens) const {
    uint64_t hash = kSeed;
    for (size_t i = 0; i < tokens.size(); ++i) hash = Mix(hash, tokens[i], i);
    std::vector<float> logits(options_.vocab);
    for (int64_t i = 0; i < options_.vocab; ++i) logits[i] = Logit(hash, i);
    return logits;
  }

  int64_t most_rows = 0, passes = 0, launched = 0, passes_with_logits = 0, moved = 0;
  int64_t state_copies = 0;  // states written within the rows of a span
  uint64_t fingerprint = 0;  // hash of all batches so far
  int32_t poison = -1;       // a history that contains this token gives NaN
  std::string router_fault;  // the router fault of every sequence in a pass with NaN
  bool together = false;     // result of launches_together()
  bool drafts = false;       // decoding sequences may have rows of drafts
  std::function<void(uint64_t pass)> during;      // called within Forward
  std::function<void(uint64_t pass)> after_draw;  // called at the end of Launch

 private:
  struct Entry {
    int32_t token, position;
    bool chunked;
  };
  static constexpr Entry kNothing = {-1, -1, false};
  static constexpr int32_t kChunked = 1 << 20;  // added to the token of a chunked row
  static constexpr uint64_t kSeed = 0x9e3779b97f4a7c15u;

  int64_t SlotOf(std::span<const int32_t> pages, int64_t position) const {
    return int64_t{pages[position / options_.page_size]} * options_.page_size +
           position % options_.page_size;
  }
  static uint64_t Mix(uint64_t hash, int32_t token, uint64_t position) {
    hash ^= static_cast<uint64_t>(token) * 0xbf58476d1ce4e5b9u + position;
    hash *= 0x94d049bb133111ebu;
    return hash ^ (hash >> 29);
  }
  static float Logit(uint64_t hash, int64_t i) {
    return static_cast<float>(Mix(hash, static_cast<int32_t>(i), 77) >> 40) * 0x1p-22f;  // [0, 4)
  }

  void CheckSlot(int32_t slot) const {
    ASSERT_GE(slot, 0);
    ASSERT_LT(static_cast<size_t>(slot), store_.size());
  }

  void CheckShape(const ForwardBatch& batch) const {
    ASSERT_EQ(batch.positions.size(), batch.tokens.size());
    ASSERT_EQ(batch.slots.size(), batch.tokens.size());
    int32_t rows = 0;
    for (const auto& sequence : batch.sequences) {
      EXPECT_EQ(sequence.row_begin, rows);
      EXPECT_GT(sequence.rows, 0);
      EXPECT_TRUE(rows >= batch.decode_tokens || sequence.rows == 1 || drafts);
      rows += sequence.rows;
    }
    EXPECT_EQ(rows, batch.num_tokens());
    // A group without rows runs a pass only because another group has rows.
    EXPECT_GT(std::accumulate(batch.group_tokens.begin(), batch.group_tokens.end(), int64_t{rows}),
              0);
  }

  void Draw(std::span<const kernels::RowSampling> draws, const TokenMasks* masks) {
    if (draws.empty()) return;
    const int64_t words = MaskWords(options_.vocab);
    drawn_.clear();
    for (size_t row = 0; row < draws.size(); ++row) {
      const auto logits =
          std::span<const float>(logits_).subspan(row * options_.vocab, options_.vocab);
      const bool finite =
          std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); });
      std::span<const uint32_t> mask;
      if (masks && masks->rows.at(row) >= 0)
        mask = std::span(masks->words).subspan(masks->rows[row] * words, words);
      drawn_.push_back(finite ? sampler_.SampleRow(logits, draws[row], mask).value_or(-1) : -1);
    }
  }

  // Advances the states of the batch, and compares them with the tokens in the pages. No slot that
  // the pass writes may be another slot that it reads or writes.
  void Recur(const ForwardBatch& batch, const std::vector<int32_t>& tokens) {
    ASSERT_EQ(batch.states.size(), options_.states > 0 ? batch.sequences.size() : 0);
    std::set<int32_t> read, written;
    for (size_t i = 0; i < batch.states.size(); ++i) {
      const kernels::StateSpan& span = batch.states[i];
      const kernels::SequenceSpan& sequence = batch.sequences[i];
      ASSERT_EQ(span.row_begin, sequence.row_begin);
      ASSERT_EQ(span.rows, sequence.rows);
      State state{kSeed, 0};
      if (span.from >= 0) state = states_.at(span.from);
      ASSERT_EQ(state.position, sequence.kv_len - sequence.rows) << "another position's state";
      CheckChunks(span, state.position);
      read.insert(span.from);
      const auto write = [&](int32_t slot) {
        EXPECT_TRUE(written.insert(slot).second);
        next_states_[slot] = state;
      };
      size_t copy = 0;
      for (int32_t row = 0; row < span.rows; ++row) {
        if (copy < std::size(span.copies) && span.copies[copy].slot >= 0 &&
            span.copies[copy].rows == row) {
          EXPECT_GT(row, 0);
          write(span.copies[copy++].slot);
          ++state_copies;
        }
        const int32_t token = tokens[span.row_begin + row] + (row < span.chunked ? kChunked : 0);
        state.hash = Mix(state.hash, token, state.position++);
      }
      EXPECT_TRUE(copy == std::size(span.copies) || span.copies[copy].slot < 0);
      write(span.to);
      EXPECT_EQ(state.hash, History(sequence, sequence.kv_len));
    }
    for (const int32_t slot : written) EXPECT_FALSE(read.contains(slot));
    for (const auto& [slot, state] : next_states_) states_.at(slot) = state;
    next_states_.clear();
  }

  // Chunks begin at their multiples, and so do the copies of states.
  void CheckChunks(const kernels::StateSpan& span, int32_t position) const {
    if (options_.state_chunk == 0) {
      EXPECT_EQ(span.chunked, 0);
      return;
    }
    EXPECT_EQ(span.chunked % options_.state_chunk, 0);
    EXPECT_LE(span.chunked, span.rows);
    if (span.chunked > 0) {
      EXPECT_EQ(position % options_.state_chunk, 0);
    }
    for (const auto& copy : span.copies) {
      EXPECT_EQ(copy.rows % options_.state_chunk, 0);
      EXPECT_LE(copy.rows, span.chunked);
    }
  }

  uint64_t History(const kernels::SequenceSpan& sequence, int32_t length) {
    uint64_t hash = kSeed;
    poisoned_ = false;
    for (int32_t i = 0; i < length; ++i) {
      const Entry& entry = store_.at(sequence.SlotOf(i, options_.page_size));
      EXPECT_EQ(entry.position, i) << "the page table points to another position's token";
      poisoned_ |= entry.token == poison;
      hash = Mix(hash, entry.token + (entry.chunked ? kChunked : 0), i);
    }
    return hash;
  }

  void AppendLogits(uint64_t hash) {
    for (int64_t i = 0; i < options_.vocab; ++i)
      logits_.push_back(poisoned_ ? std::numeric_limits<float>::quiet_NaN() : Logit(hash, i));
  }

  const Options options_;
  std::vector<Entry> store_;
  struct State {
    uint64_t hash = 0;
    int32_t position = -1;  // number of tokens before it; −1: undefined
  };
  std::vector<State> states_;
  std::map<int32_t, State> next_states_;  // written by the present pass
  std::vector<float> logits_;
  std::vector<int32_t> routed_;
  Sampler sampler_;
  std::vector<int32_t> drawn_, collected_;
  struct Pending {
    uint64_t pass;
    std::vector<int32_t> drawn;
    std::vector<int32_t> slots;  // of its rows
  };
  std::deque<Pending> pending_;
  uint64_t last_pass_ = 0, running_ = 0;
  bool poisoned_ = false, aborted_ = false;
};

}  // namespace switchyard
