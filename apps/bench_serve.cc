// `switchyard bench serve`: sends requests to a server and prints latencies and throughput.
#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "bench/serve/client.h"
#include "bench/serve/drafts.h"
#include "bench/serve/replay.h"
#include "core/command_line.h"
#include "core/error.h"
#include "server/args/command_words.h"

namespace switchyard {
namespace {

using bench::ServeOptions;

std::optional<ServeOptions> Parse(const std::vector<std::string>& words) {
  ServeOptions o;
  double rate = o.request_rate;
  CommandLine app("Drive a running server with requests and print latencies and throughput",
                  "switchyard bench serve");
  const auto flag = [&](const char* name, auto& value, const char* help) {
    return app.Option(name, value, help).ShowDefault();
  };
  flag("--host", o.host, "Where the server listens");
  flag("--port", o.port, "Where the server listens").Range(1, 65535);
  flag("--backend", o.backend, "sglang (POST /generate), openai (/v1/completions) or openai-chat")
      .OneOf({"sglang", "openai", "openai-chat"});
  flag("--model", o.model, "Model name in OpenAI requests; empty: the server's");
  flag("--dataset-name", o.dataset, "random (uniformly random ids) or jsonl")
      .OneOf({"random", "jsonl"});
  flag("--dataset-path", o.dataset_path,
       "Lines of JSON with \"prompt\" or \"text\" and an optional \"output_len\"");
  flag("--replay", o.replay,
       "Repeats the requests of a file of serve --dump-requests-folder, at their recorded times");
  flag("--num-prompts", o.num_prompts, "Requests").Positive();
  flag("--random-input-len", o.input_len, "Longest random prompt").Positive();
  flag("--random-output-len", o.output_len, "Maximum output tokens").Positive();
  flag("--random-range-ratio", o.range_ratio,
       "Lengths are uniform in [ratio x maximum, maximum]; 1: all equal")
      .Range(0.0, 1.0);
  flag("--request-rate", rate, "Requests per second (Poisson process); inf: all at the same time")
      .Positive();
  flag("--max-concurrency", o.max_concurrency, "Maximum requests in flight; 0: no limit")
      .NonNegative();
  flag("--warmup-requests", o.warmup, "Warm-up requests, which are not measured").NonNegative();
  flag("--timeout", o.timeout_seconds, "Timeout of one request in seconds").Positive();
  flag("--seed", o.seed, "Random seed of lengths, ids and arrival times");
  app.Switch("--flush-cache,!--no-flush-cache", o.flush_cache, "Options",
             "Empty the server's prefix cache after the warm-up (default: yes)");
  flag("--json,--output-file", o.json, "Also write the figures to this file");
  app.Option(
         "--profile", o.profile_dir,
         "The server writes Chrome traces of the measured requests (/start_profile, /stop_profile) "
         "to this directory on its host; without a value, to the server's default directory")
      .OptionalValue();
  if (!ParseWords(app, words)) return std::nullopt;
  o.profile = app.Given("--profile");
  o.request_rate = rate;
  if (!o.replay.empty())
    for (const char* other : {"--backend", "--dataset-name", "--dataset-path", "--num-prompts",
                              "--request-rate", "--random-input-len", "--random-output-len"})
      if (app.Given(other)) throw Invalid("{} has no effect with --replay", other);
  if (o.dataset == "jsonl" && o.dataset_path.empty())
    throw Invalid("--dataset-name jsonl needs --dataset-path FILE");
  if (o.dataset == "random" && o.backend == "openai-chat")
    throw Invalid("--backend openai-chat cannot send random ids; use --dataset-name jsonl");
  return o;
}

// On a terminal: one progress line, which each update overwrites.
class Progress {
 public:
  explicit Progress(int all) : all_(all), shown_(isatty(STDERR_FILENO) != 0) {}
  void operator()(int done, int failed) const {
    if (!shown_) return;
    fmt::print(stderr, "\r{} of {} answered", done, all_);
    if (failed > 0) fmt::print(stderr, ", {} failed", failed);
    if (done == all_) fmt::print(stderr, "\n");
  }

 private:
  int all_;
  bool shown_;
};

std::vector<bench::PlannedRequest> PlanOf(const ServeOptions& options, int64_t vocab) {
  if (options.replay.empty()) return bench::PlanLoad(options, vocab);
  bench::Replay replay = bench::ReadReplay(options.replay);
  if (replay.skipped > 0)
    fmt::print(stderr,
               "{} of {} recorded requests are not repeated: other endpoints, or several "
               "prompts\n",
               replay.skipped, replay.skipped + replay.plan.size());
  return std::move(replay.plan);
}

void StartProfile(const ServeOptions& options) {
  nlohmann::json body = nlohmann::json::object();
  // The server resolves a relative path in its own directory.
  if (!options.profile_dir.empty())
    body["output_dir"] = std::filesystem::absolute(options.profile_dir).string();
  bench::Ask(options, "POST", "/start_profile", body.dump());
}

// Servers without /get_server_info have no counts of drafts.
bench::DraftFigures DraftsNow(const ServeOptions& options) {
  try {
    return bench::DraftsOf(bench::Ask(options, "GET", "/get_server_info"));
  } catch (const Error&) {
    return {};
  }
}

// Stops the server's profile. Returns the trace files, ordered by rank.
std::vector<std::string> StopProfile(const ServeOptions& options) {
  const auto answer = nlohmann::json::parse(bench::Ask(options, "POST", "/stop_profile"));
  return answer.value("files", std::vector<std::string>());
}

}  // namespace

int RunBenchServe(const std::vector<std::string>& args) {
  auto parsed = Parse(args);
  if (!parsed) return 0;
  ServeOptions& options = *parsed;
  const auto info = nlohmann::json::parse(bench::Ask(options, "GET", "/get_model_info"));
  const int64_t vocab = info.value("vocab_size", int64_t{0});
  if (options.replay.empty() && options.dataset == "random" && vocab <= 0)
    throw Invalid(
        "the server does not report vocab_size, so random ids cannot be drawn; use --dataset-name "
        "jsonl");
  if (!options.replay.empty()) options.backend = options.dataset = "replay";
  if (options.model.empty()) options.model = info.value("served_model_name", "default");

  const auto plan = PlanOf(options, vocab);
  options.num_prompts = static_cast<int>(plan.size());
  std::ofstream json;
  if (!options.json.empty()) {
    json.open(options.json);
    if (!json) throw Resource("--json {}: cannot be written", options.json);
  }
  if (options.warmup > 0) {
    std::vector<bench::PlannedRequest> warmup(options.warmup, plan.front());
    for (bench::PlannedRequest& request : warmup) request.at = 0.0;
    const auto run = bench::RunLoad(options, warmup, [](int, int) {});
    for (const bench::RequestRecord& record : run.records)
      if (!record.error.empty())
        throw Error(ErrorKind::kPeer, fmt::format("the warm-up failed: {}", record.error));
  }
  if (options.flush_cache) bench::Ask(options, "POST", "/flush_cache");

  if (options.profile) StartProfile(options);
  const bench::DraftFigures before = DraftsNow(options);
  const auto run = bench::RunLoad(options, plan, Progress(options.num_prompts));
  const std::vector<std::string> traces =
      options.profile ? StopProfile(options) : std::vector<std::string>();
  bench::ServeSummary summary = bench::Summarize(run.records, run.seconds);
  summary.drafts = DraftsNow(options) - before;
  fmt::print("{}", bench::Table(summary, options));
  for (const std::string& file : traces) fmt::print("trace: {}\n", file);
  if (json.is_open()) json << bench::Json(summary, options) << '\n';
  for (const bench::RequestRecord& record : run.records) {
    if (record.error.empty()) continue;
    fmt::print(stderr, "switchyard: {} requests failed, the first with: {}\n", summary.failed,
               record.error);
    return 1;
  }
  return 0;
}

}  // namespace switchyard
