// For tests: requests to whole engines, and comparisons of their outputs.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "engine/engine.h"
#include "engine/sampler/random.h"

namespace switchyard {

inline std::filesystem::path Fixture(const std::string& name) {
  const std::filesystem::path data = SWITCHYARD_TEST_DATA;
  return name == "yardling" ? data / "../../models/yardling" : data / "fixtures" / name;
}

inline EngineConfig ConfigOf(const std::string& fixture, const MeshShape& mesh = {1, 1}) {
  EngineConfig config;
  config.model_path = Fixture(fixture);
  config.device = "cpu";
  config.dtype = "float32";
  config.mesh = mesh;
  config.max_total_tokens = 600;
  config.max_running_requests = 8 * mesh.dp;
  config.chunked_prefill_size = 12 * mesh.dp;
  config.page_size = 4;
  config.cpu_bind = "none";
  config.check_batches = true;
  return config;
}

// A pseudo-random number in [0, n), determined by the request and by `what`, the purpose of the
// number.
inline int32_t Below(uint64_t request, uint64_t what, int32_t n) {
  return static_cast<int32_t>(UniformDraw(request, what) * n);
}

inline EngineRequest RequestOf(uint64_t i, int32_t vocab) {
  EngineRequest request;
  const int32_t length = 2 + Below(i, 0, 30), period = 2 + Below(i, 1, 9);
  for (int32_t t = 0; t < length; ++t)
    request.input_ids.push_back(1 + Below(7 + i % 3, 100 + t % period, vocab - 1));
  SamplingParams& p = request.sampling;
  p.max_new_tokens = 1 + Below(i, 2, 30);
  p.temperature = Below(i, 3, 2) ? 0.8f : 0.0f;
  p.seed = i % 4;
  p.ignore_eos = true;
  if (Below(i, 4, 3) == 0) p.top_p = 0.9f;
  if (Below(i, 5, 3) == 0) p.repetition_penalty = 1.1f;
  if (Below(i, 6, 3) == 0) p.stop_token_ids = {1 + Below(i, 7, vocab - 1), 2};
  if (Below(i, 8, 3) == 0) request.logprob = {.enabled = true, .top = 2};
  return request;
}

using Outputs = std::map<uint64_t, RequestOutput>;

// Submits all requests at the same time, so they are batched, and some wait or are retracted.
inline Outputs RunAll(Engine& engine, uint64_t count,
                      const std::function<EngineRequest(uint64_t, int32_t)>& request = RequestOf) {
  std::mutex mutex;
  std::condition_variable done;
  Outputs outputs;
  uint64_t finished = 0;
  const auto vocab = static_cast<int32_t>(engine.plan().model.vocab_size);
  for (uint64_t i = 0; i < count; ++i) {
    engine.Submit(request(i, vocab), [&, i](const RequestOutput& news) {
      const std::lock_guard lock(mutex);
      RequestOutput& all = outputs[i];
      all.new_tokens.insert(all.new_tokens.end(), news.new_tokens.begin(), news.new_tokens.end());
      all.output_logprobs.insert(all.output_logprobs.end(), news.output_logprobs.begin(),
                                 news.output_logprobs.end());
      all.finish = news.finish;
      all.error = news.error;
      if (news.finish == FinishReason::kNone) return;
      ++finished;
      done.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return finished == count; });
  return outputs;
}

inline void ExpectEqual(const Outputs& got, const Outputs& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [i, output] : want) {
    SCOPED_TRACE(fmt::format("request {}", i));
    const RequestOutput& other = got.at(i);
    EXPECT_EQ(other.error, "");
    EXPECT_EQ(other.new_tokens, output.new_tokens);
    EXPECT_EQ(other.finish, output.finish);
    ASSERT_EQ(other.output_logprobs.size(), output.output_logprobs.size());
    for (size_t t = 0; t < output.output_logprobs.size(); ++t)
      EXPECT_EQ(other.output_logprobs[t].logprob, output.output_logprobs[t].logprob);
  }
}

}  // namespace switchyard
