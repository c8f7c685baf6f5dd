// Latencies and throughput of a load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/serve/drafts.h"
#include "bench/serve/load.h"

namespace switchyard::bench {

// Outcome of one request; times in seconds after the start of the load.
struct RequestRecord {
  double sent = 0.0, first = 0.0, last = 0.0;
  std::vector<double> gaps;  // between tokens after the first; the tokens of one event share a gap
                             // equally
  int64_t prompt_tokens = 0, output_tokens = 0;
  std::string error;  // empty: success
};

struct Percentiles {
  double mean = 0, median = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
// Nearest-rank percentiles; zeros without values.
Percentiles PercentilesOf(std::vector<double> values);

struct ServeSummary {
  int64_t completed = 0, failed = 0, prompt_tokens = 0, output_tokens = 0;
  double seconds = 0.0;      // from the first request to the last response
  double concurrency = 0.0;  // mean number of requests in flight
  // Milliseconds: end to end, to the first token, between tokens, and per output token after the
  // first.
  Percentiles e2e, ttft, itl, tpot;
  DraftFigures drafts;  // without steps: the server has drafted nothing, or does not report it
};

// Summarizes the records of a load. The caller sets `drafts`.
ServeSummary Summarize(const std::vector<RequestRecord>& records, double seconds);

// A table in the format of sglang.bench_serving.
std::string Table(const ServeSummary& summary, const ServeOptions& options);
// One JSON object. Figures that sglang.bench_serving also has get its keys.
std::string Json(const ServeSummary& summary, const ServeOptions& options);

}  // namespace switchyard::bench
