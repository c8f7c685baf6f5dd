// A front whose ranks end and are replaced, for tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/front/front.h"

namespace switchyard {

inline int32_t TokenOf(uint64_t id, size_t n) {
  return static_cast<int32_t>(20 + (id * 37 + n * 5) % 400);
}

// Simulated ranks. Each step gives every open request its next token.
class FakeRanks : public RankLink {
 public:
  void Send(const std::vector<ControlMessage>& messages) override {
    sent.insert(sent.end(), messages.begin(), messages.end());
  }
  // Replaces the ranks with new ones that have no requests. Messages to the old ranks are lost.
  void Restart() {
    sent.clear();
    taken_ = 0;
    open_.clear();
  }
  StepOutputs Step() {
    StepOutputs outputs;
    for (; taken_ < sent.size(); ++taken_) {
      if (const auto* request = std::get_if<EngineRequest>(&sent[taken_])) {
        EXPECT_TRUE(open_.emplace(request->id, *request).second) << "sent twice: " << request->id;
      } else if (const auto* abort = std::get_if<AbortRequest>(&sent[taken_])) {
        if (open_.erase(abort->id) > 0)
          outputs.outputs.push_back({.id = abort->id, .finish = FinishReason::kAbort});
      }
    }
    for (auto it = open_.begin(); it != open_.end();) {
      EngineRequest& request = it->second;
      RequestOutput& output = outputs.outputs.emplace_back();
      output.id = request.id;
      if (request.output_ids.empty()) request.cached_tokens = 3;
      output.cached_tokens = request.cached_tokens;
      output.new_tokens = {TokenOf(request.id, request.output_ids.size())};
      request.output_ids.push_back(output.new_tokens[0]);
      const bool ends = std::ssize(request.output_ids) >= request.sampling.max_new_tokens;
      if (ends) output.finish = FinishReason::kLength;
      it = ends ? open_.erase(it) : std::next(it);
    }
    return outputs;
  }
  std::vector<uint64_t> Batch() const {
    std::vector<uint64_t> ids;
    for (const auto& [id, request] : open_) ids.push_back(id);
    return ids;
  }
  std::vector<uint64_t> Requested() const {
    std::vector<uint64_t> ids;
    for (const ControlMessage& message : sent)
      if (const auto* request = std::get_if<EngineRequest>(&message)) ids.push_back(request->id);
    return ids;
  }

  std::vector<ControlMessage> sent;

 private:
  size_t taken_ = 0;
  std::map<uint64_t, EngineRequest> open_;
};

class FrontRestartTest : public ::testing::Test {
 protected:
  struct Client {
    std::vector<int32_t> tokens;
    FinishReason finish = FinishReason::kNone;
    std::string error;
    int32_t cached = 0;
  };

  uint64_t Submit(int32_t max_new_tokens) {
    GenerationSpec spec;
    spec.input_ids = {5, 6, 7};
    spec.sampling.max_new_tokens = max_new_tokens;
    spec.stream_interval = 1;
    auto client = std::make_shared<Client>();
    const uint64_t id = front->Submit(std::move(spec), [client](const GenerationEvent& e) {
      EXPECT_EQ(client->finish, FinishReason::kNone);  // no event may follow the last one
      client->tokens.insert(client->tokens.end(), e.tokens.begin(), e.tokens.end());
      client->finish = e.finish;
      client->error = e.error;
      client->cached = e.cached_tokens;
    });
    clients[id] = client;
    return id;
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) front->OnMessage(ranks.Step());
  }
  void RunOut() {
    for (int i = 0; front->open() > 0; ++i) {
      ASSERT_LT(i, 1000);
      Steps(1);
    }
  }
  RanksEnd Killed() const { return {.why = "rank 1 was killed", .time = Clock::now()}; }
  RanksEnd Crashed(std::optional<std::vector<uint64_t>> batch, std::vector<int> ranks = {1}) const {
    return {.why = "rank 1 was killed by signal 11 (SIGSEGV)",
            .time = Clock::now(),
            .failed = std::move(ranks),
            .batch = std::move(batch)};
  }
  void Restart(const RanksEnd& end) {
    front->Pause(end);
    ranks.Restart();
    front->Resume();
  }
  void ExpectWhole(uint64_t id, size_t count) {
    std::vector<int32_t> want;
    for (size_t n = 0; n < count; ++n) want.push_back(TokenOf(id, n));
    EXPECT_EQ(clients[id]->tokens, want) << "request " << id;
    EXPECT_EQ(clients[id]->finish, FinishReason::kLength) << clients[id]->error;
    EXPECT_EQ(clients[id]->cached, 3);
  }
  void Begin() {
    ranks.Restart();
    clients.clear();
    front = std::make_unique<Front>(
        ranks, *tokenizer,
        Front::Limits{.vocab_size = 512, .context_length = 64, .cache_tokens = 1024});
  }
  void SetUp() override { Begin(); }

  using Clock = std::chrono::steady_clock;
  FakeRanks ranks;
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::FromFile(SWITCHYARD_TEST_DATA "/fixtures/qwen3_moe/tokenizer.json");
  std::unique_ptr<Front> front;
  std::map<uint64_t, std::shared_ptr<Client>> clients;
};

}  // namespace switchyard
