#include "bench/serve/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace switchyard::bench {
namespace {

constexpr double kMs = 1e3;

struct Named {
  const char *title, *key;
  const Percentiles& values;
};

std::vector<Named> Latencies(const ServeSummary& s) {
  return {{"End-to-End Latency", "e2e_latency", s.e2e},
          {"Time to First Token", "ttft", s.ttft},
          {"Time per Output Token (excl. 1st token)", "tpot", s.tpot},
          {"Inter-Token Latency", "itl", s.itl}};
}

double PerSecond(double count, const ServeSummary& s) {
  return s.seconds > 0 ? count / s.seconds : 0.0;
}

std::string Rate(const ServeOptions& o) {
  return std::isinf(o.request_rate) ? "inf" : fmt::format("{:g}", o.request_rate);
}

}  // namespace

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  const auto at = [&](double part) {
    return values[static_cast<size_t>(std::max(1.0, std::ceil(part * count))) - 1];
  };
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) / count,
          .median = at(0.5),
          .p90 = at(0.9),
          .p95 = at(0.95),
          .p99 = at(0.99),
          .max = values.back()};
}

ServeSummary Summarize(const std::vector<RequestRecord>& records, double seconds) {
  ServeSummary s{.seconds = seconds};
  std::vector<double> e2e, ttft, itl, tpot;
  double in_flight = 0.0;
  for (const RequestRecord& r : records) {
    if (!r.error.empty()) {
      ++s.failed;
      continue;
    }
    ++s.completed;
    s.prompt_tokens += r.prompt_tokens;
    s.output_tokens += r.output_tokens;
    in_flight += r.last - r.sent;
    e2e.push_back((r.last - r.sent) * kMs);
    ttft.push_back((r.first - r.sent) * kMs);
    for (const double gap : r.gaps) itl.push_back(gap * kMs);
    if (r.output_tokens > 1)
      tpot.push_back((r.last - r.first) / static_cast<double>(r.output_tokens - 1) * kMs);
  }
  s.concurrency = PerSecond(in_flight, s);
  s.e2e = PercentilesOf(std::move(e2e));
  s.ttft = PercentilesOf(std::move(ttft));
  s.itl = PercentilesOf(std::move(itl));
  s.tpot = PercentilesOf(std::move(tpot));
  return s;
}

std::string Table(const ServeSummary& s, const ServeOptions& options) {
  std::string out = fmt::format("{:=^56}\n", " Serving Benchmark Result ");
  const auto line = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<44}{:>12}\n", fmt::format("{}:", name), value);
  };
  const auto figure = [](double value) { return fmt::format("{:.2f}", value); };
  line("Backend", options.backend);
  line("Request rate (req/s)", Rate(options));
  line("Max concurrency", options.max_concurrency ? fmt::format("{}", options.max_concurrency)
                                                  : std::string("not set"));
  line("Successful requests", fmt::format("{}", s.completed));
  line("Failed requests", fmt::format("{}", s.failed));
  line("Benchmark duration (s)", figure(s.seconds));
  line("Total input tokens", fmt::format("{}", s.prompt_tokens));
  line("Total generated tokens", fmt::format("{}", s.output_tokens));
  line("Request throughput (req/s)", figure(PerSecond(static_cast<double>(s.completed), s)));
  line("Input token throughput (tok/s)",
       figure(PerSecond(static_cast<double>(s.prompt_tokens), s)));
  line("Output token throughput (tok/s)",
       figure(PerSecond(static_cast<double>(s.output_tokens), s)));
  line("Total token throughput (tok/s)",
       figure(PerSecond(static_cast<double>(s.prompt_tokens + s.output_tokens), s)));
  line("Concurrency", figure(s.concurrency));
  if (s.drafts.steps > 0) {
    line("Accept length", figure(s.drafts.accept_length()));
    line("Accepted drafts", fmt::format("{} of {}", s.drafts.accepted, s.drafts.drafted));
  }
  for (const auto& [title, key, p] : Latencies(s)) {
    out += fmt::format("{:-^56}\n", fmt::format(" {} (ms) ", title));
    line("Mean", figure(p.mean));
    line("Median", figure(p.median));
    line("P90", figure(p.p90));
    line("P95", figure(p.p95));
    line("P99", figure(p.p99));
    line("Max", figure(p.max));
  }
  return out + std::string(56, '=') + "\n";
}

std::string Json(const ServeSummary& s, const ServeOptions& o) {
  nlohmann::ordered_json json = {
      {"backend", o.backend},
      {"dataset_name", o.dataset},
      {"request_rate", Rate(o)},
      {"max_concurrency", o.max_concurrency},
      {"random_input_len", o.input_len},
      {"random_output_len", o.output_len},
      {"random_range_ratio", o.range_ratio},
      {"duration", s.seconds},
      {"completed", s.completed},
      {"failed", s.failed},
      {"total_input_tokens", s.prompt_tokens},
      {"total_output_tokens", s.output_tokens},
      {"request_throughput", PerSecond(static_cast<double>(s.completed), s)},
      {"input_throughput", PerSecond(static_cast<double>(s.prompt_tokens), s)},
      {"output_throughput", PerSecond(static_cast<double>(s.output_tokens), s)},
      {"concurrency", s.concurrency}};
  if (s.drafts.steps > 0) {
    json["accept_length"] = s.drafts.accept_length();
    json["accept_rate"] = s.drafts.accept_rate();
    json["verify_steps"] = s.drafts.steps;
    json["draft_tokens"] = s.drafts.drafted;
    json["accepted_draft_tokens"] = s.drafts.accepted;
  }
  for (const auto& [title, key, p] : Latencies(s)) {
    const std::string name = key;
    json["mean_" + name + "_ms"] = p.mean;
    json["median_" + name + "_ms"] = p.median;
    json["p90_" + name + "_ms"] = p.p90;
    json["p95_" + name + "_ms"] = p.p95;
    json["p99_" + name + "_ms"] = p.p99;
    json["max_" + name + "_ms"] = p.max;
  }
  return json.dump(1);
}

}  // namespace switchyard::bench
