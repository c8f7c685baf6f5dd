#include "plan/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <tuple>

#include "core/error.h"
#include "core/json.h"

namespace switchyard::plan {
namespace {

// Sizes of steps are rounded up by at most 3 %, so that few shapes occur.
int64_t Rounded(int64_t size) {
  if (size <= 32) return size;
  const double step = std::exp2(std::floor(std::log2(static_cast<double>(size))) - 5);
  return static_cast<int64_t>(std::ceil(static_cast<double>(size) / step) * step);
}

struct Request {
  Arrival arrival;
  int64_t prompt_done = 0, output_done = 0;
  double first = 0;  // time of the first token
};

// The requests of one attention group.
struct Group {
  std::deque<Request> waiting;
  std::vector<Request> running;
  int64_t reserved = 0;  // cache tokens reserved for running requests
};

// Rows of a step in the group with the most rows, which determines the step's time.
struct Rows {
  int64_t prompt = 0, decode = 0, keys = 0, prompt_keys = 0;
  auto operator<=>(const Rows&) const = default;
};

class StepTimes {
 public:
  StepTimes(const LayoutCosts& costs, int dp) : costs_(costs), dp_(dp) {}

  double Of(const Rows& rows) {
    const Rows key{Rounded(rows.prompt), Rounded(rows.decode), Rounded(rows.keys),
                   Rounded(rows.prompt_keys)};
    const auto [entry, added] = known_.try_emplace(key, 0.0);
    if (added) entry->second = Seconds(key);
    return entry->second;
  }

 private:
  // A step with prompt and decode rows is one pass. In matrix products, a decode row costs as much
  // as one more prompt row. The time to read the keys of decode rows is added.
  double Seconds(const Rows& rows) const {
    const auto groups = static_cast<double>(dp_);
    if (rows.prompt == 0)
      return costs_
          .Decode(groups * static_cast<double>(rows.decode), static_cast<double>(rows.keys))
          .seconds;
    const double prompt = groups * static_cast<double>(rows.prompt + rows.decode);
    double seconds =
        costs_.Prefill(prompt, std::max(1.0, 2.0 * static_cast<double>(rows.prompt_keys))).seconds;
    if (rows.decode > 0) {
      const double running = groups * static_cast<double>(rows.decode);
      seconds += costs_.Decode(running, static_cast<double>(rows.keys)).seconds -
                 costs_.Decode(running, 1).seconds;
    }
    return seconds;
  }

  const LayoutCosts& costs_;
  const int dp_;
  std::map<Rows, double> known_;
};

class EngineRun {
 public:
  EngineRun(const Evaluation& layout, StepTimes& times, const EngineConfig& config, bool keeps,
            Simulation* out, std::vector<double>* ttft, std::vector<double>* itl,
            std::vector<double>* latency)
      : groups_(layout.layout.mesh.dp),
        most_running_(layout.plan.max_running_requests),
        cache_(layout.plan.num_pages * config.page_size),
        chunk_(layout.plan.chunked_prefill_size),
        times_(times),
        keeps_(keeps),
        out_(out),
        ttft_(ttft),
        itl_(itl),
        latency_(latency) {}

  // `arrivals`: those of this engine, in ascending time.
  void Run(const std::vector<Arrival>& arrivals) {
    size_t next = 0;
    while (true) {
      while (next < arrivals.size() && arrivals[next].seconds <= now_)
        groups_[next++ % groups_.size()].waiting.push_back({.arrival = arrivals[next - 1]});
      int64_t waiting = 0;
      for (Group& group : groups_) {
        Admit(group);
        waiting += std::ssize(group.waiting);
      }
      out_->most_waiting = std::max(out_->most_waiting, waiting);
      const bool works =
          std::ranges::any_of(groups_, [](const Group& g) { return !g.running.empty(); });
      if (!works) {
        if (next == arrivals.size()) return;
        now_ = arrivals[next].seconds;
        continue;
      }
      Step();
    }
  }

  double now() const { return now_; }
  double busy() const { return busy_; }
  double request_seconds() const { return request_seconds_; }

 private:
  void Admit(Group& group) const {
    while (!group.waiting.empty() && std::ssize(group.running) < most_running_) {
      const Arrival& a = group.waiting.front().arrival;
      if (group.reserved + a.input + a.output > cache_) return;
      group.reserved += a.input + a.output;
      group.running.push_back(group.waiting.front());
      group.waiting.pop_front();
    }
  }

  void Step() {
    Rows most;
    std::vector<std::vector<int64_t>> taken(groups_.size());  // prompt rows of each request
    int64_t idle = 0, prompt_rows = 0, decode_rows = 0, running = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      Rows rows;
      int64_t left = chunk_ < 0 ? cache_ : chunk_;
      for (const Request& r : group.running) {
        const int64_t prompt = std::min(left, r.arrival.input - r.prompt_done);
        taken[g].push_back(prompt);
        left -= prompt;
        rows.prompt += prompt;
        rows.prompt_keys += prompt * (r.prompt_done + prompt / 2);
        if (prompt == 0 && r.prompt_done == r.arrival.input) {
          ++rows.decode;
          rows.keys += r.arrival.input + r.output_done;
        }
      }
      if (rows.decode > 0) rows.keys /= rows.decode;
      if (rows.prompt > 0) rows.prompt_keys /= rows.prompt;
      if (rows.prompt + rows.decode == 0) ++idle;
      prompt_rows += rows.prompt;
      decode_rows += rows.decode;
      running += std::ssize(group.running);
      most.prompt = std::max(most.prompt, rows.prompt);
      most.decode = std::max(most.decode, rows.decode);
      most.keys = std::max(most.keys, rows.keys);
      most.prompt_keys = std::max(most.prompt_keys, rows.prompt_keys);
    }
    const double seconds = times_.Of(most), start = now_;
    now_ += seconds;
    busy_ += seconds;
    request_seconds_ += seconds * static_cast<double>(running);
    ++out_->steps;
    out_->uneven += static_cast<double>(idle) / static_cast<double>(groups_.size());
    if (keeps_ && out_->first_engine.size() < Simulation::kKeptSteps)
      out_->first_engine.push_back({start, seconds, prompt_rows, decode_rows});
    for (size_t g = 0; g < groups_.size(); ++g) Advance(groups_[g], taken[g]);
  }

  void Advance(Group& group, const std::vector<int64_t>& taken) {
    std::vector<Request> left;
    for (size_t i = 0; i < group.running.size(); ++i) {
      Request& r = group.running[i];
      const bool decodes = taken[i] == 0 && r.prompt_done == r.arrival.input;
      r.prompt_done += taken[i];
      const bool first = taken[i] > 0 && r.prompt_done == r.arrival.input;
      if (first) {
        r.first = now_;
        ttft_->push_back(now_ - r.arrival.seconds);
      }
      if (first || decodes) ++r.output_done;
      if (r.output_done < r.arrival.output) {
        left.push_back(r);
        continue;
      }
      group.reserved -= r.arrival.input + r.arrival.output;
      latency_->push_back(now_ - r.arrival.seconds);
      if (r.arrival.output > 1)
        itl_->push_back((now_ - r.first) / static_cast<double>(r.arrival.output - 1));
    }
    group.running = std::move(left);
  }

  std::vector<Group> groups_;
  const int64_t most_running_, cache_, chunk_;
  StepTimes& times_;
  const bool keeps_;
  Simulation* const out_;
  std::vector<double>*const ttft_, *const itl_, *const latency_;
  double now_ = 0, busy_ = 0, request_seconds_ = 0;
};

Percentiles Of(std::vector<double>& values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[std::min(values.size() - 1,
                           static_cast<size_t>(share * static_cast<double>(values.size())))];
  };
  return {at(0.5), at(0.9), at(0.99)};
}

}  // namespace

Simulation Simulate(const Question& q, const Evaluation& layout,
                    const std::vector<Arrival>& arrivals) {
  if (!layout.accepted) throw Invalid("layout {}: {}", layout.layout.Name(), layout.refused);
  const int64_t cache = layout.plan.num_pages * q.config.page_size;
  for (const Arrival& a : arrivals)
    if (a.input + a.output > cache)
      throw Invalid("a request of {} tokens does not fit the cache of a group, {} tokens",
                    a.input + a.output, cache);
  const LayoutCosts costs(q, layout.layout, layout.plan);
  StepTimes times(costs, layout.layout.mesh.dp);
  Simulation out;
  std::vector<double> ttft, itl, latency;
  double busy = 0, request_seconds = 0, tokens = 0;
  for (const Arrival& a : arrivals) tokens += static_cast<double>(a.output);
  for (int engine = 0; engine < layout.replicas; ++engine) {
    std::vector<Arrival> own;
    for (size_t i = engine; i < arrivals.size(); i += layout.replicas) own.push_back(arrivals[i]);
    EngineRun run(layout, times, q.config, engine == 0, &out, &ttft, &itl, &latency);
    run.Run(own);
    busy += run.busy();
    request_seconds += run.request_seconds();
    out.seconds = std::max(out.seconds, run.now());
  }
  out.requests = std::ssize(arrivals);
  out.output_rate = out.seconds > 0 ? tokens / out.seconds : 0;
  out.busy = out.seconds > 0 ? busy / out.seconds / layout.replicas : 0;
  out.running = out.seconds > 0 ? request_seconds / out.seconds : 0;
  out.uneven = out.steps > 0 ? out.uneven / static_cast<double>(out.steps) : 0;
  out.ttft = Of(ttft);
  out.itl = Of(itl);
  out.latency = Of(latency);
  return out;
}

std::string SimulationText(const Evaluation& layout, const Simulation& s) {
  const auto line = [](const char* name, const Percentiles& p) {
    return fmt::format("{:<22} {:>10.1f} {:>10.1f} {:>10.1f}\n", name, 1e3 * p.p50, 1e3 * p.p90,
                       1e3 * p.p99);
  };
  return fmt::format(
             "{}, {} engine{}: {} requests in {:.1f} s, {} steps\noutput {:.0f} tokens/s; engines "
             "are busy {:.0f} % of the time; {:.1f} requests run on average; at most {} wait in an "
             "engine; groups are idle in {:.1f} % of steps\n",
             layout.layout.Name(), layout.replicas, layout.replicas > 1 ? "s" : "", s.requests,
             s.seconds, s.steps, s.output_rate, 100 * s.busy, s.running, s.most_waiting,
             100 * s.uneven) +
         fmt::format("{:<22} {:>10} {:>10} {:>10}\n", "ms", "p50", "p90", "p99") +
         line("time to first token", s.ttft) + line("time between tokens", s.itl) +
         line("latency", s.latency);
}

std::string SimulationTrace(const Simulation& s) {
  std::string out = "{\"traceEvents\": [";
  for (size_t i = 0; i < s.first_engine.size(); ++i) {
    const Simulation::Step& step = s.first_engine[i];
    out += fmt::format(
        "{}\n{{\"name\": \"{}\", \"ph\": \"X\", \"pid\": 0, \"tid\": 0, \"ts\": "
        "{:.1f}, \"dur\": {:.1f}, \"args\": {{\"prompt rows\": {}, \"decode rows\": "
        "{}}}}}",
        i ? "," : "", step.prompt_rows > 0 ? "prefill" : "decode", 1e6 * step.start,
        1e6 * step.seconds, step.prompt_rows, step.decode_rows);
  }
  return out + "\n]}\n";
}

}  // namespace switchyard::plan
