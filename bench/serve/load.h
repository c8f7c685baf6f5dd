// The requests of `switchyard bench serve`, and their arrival times.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace switchyard::bench {

// Names and defaults are those of sglang.bench_serving, for the options that it also has.
struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 30000;
  // sglang: POST /generate; openai: POST /v1/completions; openai-chat: POST /v1/chat/completions.
  std::string backend = "sglang";
  std::string model;               // model name in OpenAI requests; empty: the server's
  std::string dataset = "random";  // random, or jsonl
  std::string dataset_path;        // for jsonl: lines with "prompt" or "text", and "output_len"
  std::string replay;  // file of recorded requests (replay.h); empty: the options above apply
  int num_prompts = 100;
  int input_len = 512, output_len = 128;
  double range_ratio = 0.0;  // lengths are uniform in [ratio · length, length]
  double request_rate = std::numeric_limits<double>::infinity();  // per second; infinite: all at
                                                                  // once
  int max_concurrency = 0;                                        // 0: no limit
  int warmup = 1;                                                 // warm-up requests
  double timeout_seconds = 600;                                   // per request
  uint64_t seed = 1;
  bool flush_cache = true;  // after the warm-up
  std::string json;         // if not empty, also write the figures to this file
  bool profile = false;     // the server writes traces of the measured requests
  std::string profile_dir;  // on the server's host; empty: the server's default
};

struct PlannedRequest {
  double at = 0.0;  // seconds after the start
  std::vector<int32_t> input_ids;
  std::string text;  // used if input_ids is empty
  int output_tokens = 0;
  // Of a recorded request; then the members above have no effect, except `at`. Empty: none.
  std::string path, body;
};

// Deterministic for the same options: ids uniform in [0, vocab), arrivals of a Poisson process.
// Error kInvalid names the file that cannot be read, or the file and the malformed line.
std::vector<PlannedRequest> PlanLoad(const ServeOptions& options, int64_t vocab);

}  // namespace switchyard::bench
