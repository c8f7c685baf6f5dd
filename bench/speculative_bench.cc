// Speculative decoding: time of the same outputs with and without drafts, in alternation.
//
// Usage: speculative_bench --model DIR --text FILE [--algorithm NEXTN] [--steps auto] [--batch 1]
//                          [--prompt 48] [--tokens 128] [--tp 1] [--temperature 0] [--repeat 5]
//                          [--draft DIR] [--simulate -1] [--repetitions 1]
//
// Prompts are paragraphs of FILE, cut to `--prompt` tokens. With --repetitions, a prompt has its
// paragraph several times, so the output tends to repeat it. Figures are of whole requests, prompts
// included. Outputs of both engines are compared, unless acceptance is simulated.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "core/command_line.h"
#include "core/error.h"
#include "engine/engine.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<int32_t>;

struct Args {
  std::string model, text, algorithm = "NEXTN", steps = "auto", draft;
  int32_t batch = 1, prompt = 48, tokens = 128, tp = 1, repeat = 5, repetitions = 1;
  double temperature = 0, simulate = -1;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::vector<Ids> Prompts(const Args& args) {
  const auto tokenizer = Tokenizer::FromDirectory(args.model);
  std::ifstream file(args.text);
  if (!file) throw NotFound("{}: cannot be read", args.text);
  std::vector<Ids> prompts;
  for (std::string line; std::getline(file, line);) {
    Ids ids = tokenizer->Encode(line, /*add_special_tokens=*/false);
    if (std::ssize(ids) < args.prompt) continue;
    ids.resize(args.prompt);
    const Ids once = ids;
    for (int32_t i = 1; i < args.repetitions; ++i) ids.insert(ids.end(), once.begin(), once.end());
    prompts.push_back(std::move(ids));
  }
  if (prompts.empty()) throw Invalid("{}: no paragraph has {} tokens", args.text, args.prompt);
  return prompts;
}

struct Run {
  double seconds = 0;
  int64_t tokens = 0;
  std::vector<Ids> outputs;
};

// All prompts, `batch` at a time.
Run RunAll(Engine& engine, const Args& args, const std::vector<Ids>& prompts) {
  Run run;
  run.outputs.resize(prompts.size());
  std::mutex mutex;
  std::condition_variable done;
  engine.FlushCache();
  const auto start = Clock::now();
  for (size_t first = 0; first < prompts.size(); first += args.batch) {
    const size_t last = std::min(prompts.size(), first + args.batch);
    size_t open = last - first;
    for (size_t i = first; i < last; ++i) {
      EngineRequest request{.input_ids = prompts[i]};
      request.sampling.max_new_tokens = args.tokens;
      request.sampling.temperature = static_cast<float>(args.temperature);
      request.sampling.seed = i;
      request.sampling.ignore_eos = true;
      engine.Submit(std::move(request), [&, i](const RequestOutput& output) {
        const std::lock_guard lock(mutex);
        Ids& ids = run.outputs[i];
        ids.insert(ids.end(), output.new_tokens.begin(), output.new_tokens.end());
        if (output.finish == FinishReason::kNone) return;
        --open;
        done.notify_all();
      });
    }
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return open == 0; });
  }
  run.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (const Ids& ids : run.outputs) run.tokens += std::ssize(ids);
  return run;
}

void PrintDrafts(const EngineStats& s) {
  const auto ratio = [](int64_t a, int64_t b) {
    return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
  };
  fmt::print("drafts {}, accepted {} ({:.3f}), wasted {}; tokens of a step with drafts {:.2f}\n",
             s.drafted_tokens, s.accepted_tokens, ratio(s.accepted_tokens, s.drafted_tokens),
             s.drafted_tokens - s.accepted_tokens, 1 + ratio(s.accepted_tokens, s.verify_steps));
  for (size_t i = 0; i < s.verified_by_position.size(); ++i)
    fmt::print("  draft {}: acceptance {:.3f} of {} verified\n", i + 1,
               ratio(s.accepted_by_position[i], s.verified_by_position[i]),
               s.verified_by_position[i]);
}

void Bench(const Args& args) {
  EngineConfig config;
  config.model_path = args.model;
  config.mesh = {.tp = args.tp, .ep = args.tp};
  config.max_total_tokens = 64 * (args.prompt * args.repetitions + args.tokens + 32);
  const std::vector<Ids> prompts = Prompts(args);
  Engine plain(config);
  config.speculative = {.algorithm = args.algorithm,
                        .num_steps = args.steps,
                        .draft_model_path = args.draft,
                        .simulate_acceptance = args.simulate};
  Engine drafts(config);
  std::vector<double> plain_rates, rates, ratios;
  for (int32_t i = 0; i <= args.repeat; ++i) {
    const Run a = RunAll(plain, args, prompts), b = RunAll(drafts, args, prompts);
    if (args.simulate < 0 && a.outputs != b.outputs) throw Invalid("outputs differ: a bug");
    if (i == 0) continue;  // warm-up
    plain_rates.push_back(static_cast<double>(a.tokens) / a.seconds);
    rates.push_back(static_cast<double>(b.tokens) / b.seconds);
    ratios.push_back(rates.back() / plain_rates.back());
  }
  fmt::print("{} {} steps, batch {}, {} prompts of {} tokens, {} tokens each\n", args.algorithm,
             args.steps, args.batch, prompts.size(), prompts[0].size(), args.tokens);
  fmt::print("tokens/s without drafts {:.1f}, with {:.1f}: {:.3f} x ({:.3f} to {:.3f})\n",
             Median(plain_rates), Median(rates), Median(ratios), *std::ranges::min_element(ratios),
             *std::ranges::max_element(ratios));
  PrintDrafts(Total(drafts.Stats()));
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  using namespace switchyard;
  bench::Args a;
  CommandLine app("Time of the same outputs with and without drafts");
  app.Option("--model", a.model, "Checkpoint directory").Required();
  app.Option("--text", a.text, "File whose lines begin the prompts").Required();
  app.Option("--algorithm", a.algorithm, "NGRAM, NEXTN or STANDALONE");
  app.Option("--steps", a.steps, "auto, or drafts of a step");
  app.Option("--draft", a.draft, "Draft model of STANDALONE");
  app.Option("--batch", a.batch, "Requests at a time").Positive();
  app.Option("--prompt", a.prompt, "Tokens of a paragraph").Positive();
  app.Option("--tokens", a.tokens, "Tokens of an output").Positive();
  app.Option("--tp", a.tp, "Number of ranks").Positive();
  app.Option("--repeat", a.repeat, "Measured pairs of runs").Positive();
  app.Option("--temperature", a.temperature, "0: greedy");
  app.Option("--simulate", a.simulate, "Simulated acceptance; -1: none");
  app.Option("--repetitions", a.repetitions, "Times that a prompt has its paragraph").Positive();
  if (const auto code = app.ParseMain(argc, argv)) return *code;
  try {
    bench::Bench(a);
  } catch (const std::exception& e) {
    fmt::print(stderr, "speculative_bench: {}\n", e.what());
    return 1;
  }
}
