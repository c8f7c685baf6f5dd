// What `switchyard bench serve` sends, and when.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace switchyard::bench {

// Names and defaults follow sglang.bench_serving, where it has them.
struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 30000;
  std::string backend = "sglang";  // sglang: POST /generate; openai: /v1/completions; openai-chat
  std::string model;               // of OpenAI's bodies; empty: what the server says
  std::string dataset = "random";  // random, or jsonl
  std::string dataset_path;        // of jsonl: lines with "prompt" or "text", and "output_len"
  int num_prompts = 100;
  int input_len = 512, output_len = 128;
  double range_ratio = 0.0;  // lengths are drawn evenly from [ratio · length, length]
  double request_rate = std::numeric_limits<double>::infinity();  // a second; infinite: at once
  int max_concurrency = 0;                                        // 0: no limit
  int warmup = 1;                // requests before the clock starts
  double timeout_seconds = 600;  // of one request
  uint64_t seed = 1;
  bool flush_cache = true;  // before the clock starts
  std::string json;         // also write the figures to this file
};

struct PlannedRequest {
  double at = 0.0;  // seconds after the start
  std::vector<int32_t> input_ids;
  std::string text;  // where input_ids are empty
  int output_tokens = 0;
};

// The same for the same options: ids evenly out of [0, vocab), arrivals as of a Poisson process.
// Error kInvalid names a file that cannot be read, or its line.
std::vector<PlannedRequest> PlanLoad(const ServeOptions& options, int64_t vocab);

}  // namespace switchyard::bench
