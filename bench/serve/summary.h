// Latencies and throughput of a load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/serve/load.h"

namespace switchyard::bench {

// What became of a request; times in seconds after the start of the load.
struct RequestRecord {
  double sent = 0.0, first = 0.0, last = 0.0;
  std::vector<double> gaps;  // between tokens after the first; those of one event share its gap
  int64_t prompt_tokens = 0, output_tokens = 0;
  std::string error;  // empty: it ended well
};

struct Percentiles {
  double mean = 0, median = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// Nearest rank. All zeros where there are no values.
Percentiles PercentilesOf(std::vector<double> values);

struct ServeSummary {
  int64_t completed = 0, failed = 0, prompt_tokens = 0, output_tokens = 0;
  double seconds = 0.0;      // from the first request to the last answer
  double concurrency = 0.0;  // requests in flight, on average
  // Milliseconds: end to end, to the first token, between tokens, and per token after the first of
  // each request.
  Percentiles e2e, ttft, itl, tpot;
};

ServeSummary Summarize(const std::vector<RequestRecord>& records, double seconds);

// A table as sglang.bench_serving prints.
std::string Table(const ServeSummary& summary, const ServeOptions& options);
// One object; keys as sglang.bench_serving's where it has them.
std::string Json(const ServeSummary& summary, const ServeOptions& options);

}  // namespace switchyard::bench
