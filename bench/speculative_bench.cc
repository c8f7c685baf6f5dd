// Speculative decoding: time of the same outputs with and without drafts, in alternation.
//
// Usage: speculative_bench --model DIR (--text FILE | --chats FILE) [--algorithm NEXTN]
//                          [--steps auto] [--batch 1] [--prompts 40] [--prompt 48] [--tokens 128]
//                          [--topk 1] [--rows 0] [--tp 1] [--temperature 0] [--repeat 5]
//                          [--draft DIR] [--simulate -1] [--repetitions 1]
//                          [--quantization METHOD] [--token-map FILE]
//
// With --text, prompts are paragraphs of FILE, cut to `--prompt` tokens, and outputs have
// `--tokens` tokens. With --repetitions, a prompt has its paragraph several times, so the output
// tends to repeat it. With --chats, FILE has a chat on each line ({"messages": […]}); prompts are
// the first questions, and outputs end where the model ends them. Two kinds of figures are printed:
// for whole requests, including the prompts, and for decoding only, from the first output of a
// request to its last. Outputs of both engines are compared, unless acceptance is simulated.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/command_line.h"
#include "core/error.h"
#include "engine/engine.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<int32_t>;

struct Args {
  std::string model, text, chats, algorithm = "NEXTN", steps = "auto", draft, quantization,
                                  token_map;
  int32_t batch = 1, prompts = 40, prompt = 48, tokens = 128, tp = 1, repeat = 5, repetitions = 1;
  int32_t topk = 1, rows = 0;
  double temperature = 0, simulate = -1;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Returns the prompt of a line of the file; empty: the line has no prompt.
using PromptOf = std::function<Ids(const std::string&)>;

PromptOf Paragraphs(const Args& args, const Tokenizer& tokenizer) {
  return [&](const std::string& line) {
    const Ids all = tokenizer.Encode(line, /*add_special_tokens=*/false);
    Ids ids;
    if (std::ssize(all) < args.prompt) return ids;
    for (int32_t i = 0; i < args.repetitions; ++i)
      ids.insert(ids.end(), all.begin(), all.begin() + args.prompt);
    return ids;
  };
}

PromptOf Questions(const Args& args, const Tokenizer& tokenizer) {
  return [&tokenizer, chat = ChatTemplate::FromDirectory(args.model)](const std::string& line) {
    const auto messages = nlohmann::ordered_json::parse(line)["messages"];
    return EncodeRendered(
        tokenizer, chat.Apply({.messages = nlohmann::ordered_json::array({messages.at(0)})}));
  };
}

// Up to --prompts prompts, from lines at equal distances in the file.
std::vector<Ids> Prompts(const Args& args) {
  const std::string& path = args.chats.empty() ? args.text : args.chats;
  const auto tokenizer = Tokenizer::FromDirectory(args.model);
  const PromptOf prompt_of =
      args.chats.empty() ? Paragraphs(args, *tokenizer) : Questions(args, *tokenizer);
  std::ifstream file(path);
  if (!file) throw NotFound("{}: cannot be read", path);
  std::vector<Ids> all, prompts;
  for (std::string line; std::getline(file, line);)
    if (Ids ids = prompt_of(line); !ids.empty()) all.push_back(std::move(ids));
  if (all.empty()) throw Invalid("{}: no paragraph has {} tokens", path, args.prompt);
  const size_t count = std::min<size_t>(args.prompts, all.size());
  for (size_t i = 0; i < count; ++i) prompts.push_back(all[i * all.size() / count]);
  return prompts;
}

struct Run {
  // Seconds of the run, and the sum over requests of the time from the first output to the last.
  double seconds = 0, decode_seconds = 0;
  int64_t tokens = 0, decode_tokens = 0;  // decode_tokens excludes the first token of each request
  std::vector<Ids> outputs;
  std::vector<Clock::time_point> first;  // [prompts] time of the first output

  double rate() const { return static_cast<double>(tokens) / seconds; }
  double decode_rate() const { return static_cast<double>(decode_tokens) / decode_seconds; }
};

// All prompts, `batch` at a time.
Run RunAll(Engine& engine, const Args& args, const std::vector<Ids>& prompts) {
  Run run;
  run.outputs.resize(prompts.size());
  run.first.resize(prompts.size());
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
      request.sampling.ignore_eos = args.chats.empty();
      engine.Submit(std::move(request), [&, i](const RequestOutput& output) {
        const std::lock_guard lock(mutex);
        Ids& ids = run.outputs[i];
        if (ids.empty()) run.first[i] = Clock::now();
        ids.insert(ids.end(), output.new_tokens.begin(), output.new_tokens.end());
        if (output.finish == FinishReason::kNone) return;
        run.decode_seconds += std::chrono::duration<double>(Clock::now() - run.first[i]).count();
        run.decode_tokens += std::max<int64_t>(0, std::ssize(ids) - 1);
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
                        .eagle_topk = args.topk,
                        .num_draft_tokens = args.rows,
                        .draft_model_path = args.draft,
                        .draft_quantization = args.quantization,
                        .token_map = args.token_map,
                        .simulate_acceptance = args.simulate};
  Engine drafts(config);
  int64_t tokens = 0;
  std::vector<double> plain_rates, rates, ratios, decode_ratios;
  for (int32_t i = 0; i <= args.repeat; ++i) {
    const Run a = RunAll(plain, args, prompts), b = RunAll(drafts, args, prompts);
    if (args.simulate < 0 && a.outputs != b.outputs) throw Invalid("outputs differ: a bug");
    if (i == 0) continue;  // warm-up
    plain_rates.push_back(a.rate());
    rates.push_back(b.rate());
    ratios.push_back(b.rate() / a.rate());
    decode_ratios.push_back(b.decode_rate() / a.decode_rate());
    tokens = a.tokens;
  }
  fmt::print("{} {} steps, batch {}, {} prompts, {} tokens of outputs\n", args.algorithm,
             args.steps, args.batch, prompts.size(), tokens);
  fmt::print("tokens/s without drafts {:.1f}, with {:.1f}: {:.3f} x ({:.3f} to {:.3f})\n",
             Median(plain_rates), Median(rates), Median(ratios), *std::ranges::min_element(ratios),
             *std::ranges::max_element(ratios));
  fmt::print("decoding only: {:.3f} x ({:.3f} to {:.3f})\n", Median(decode_ratios),
             *std::ranges::min_element(decode_ratios), *std::ranges::max_element(decode_ratios));
  PrintDrafts(Total(drafts.Stats()));
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  using namespace switchyard;
  bench::Args a;
  CommandLine app("Time of the same outputs with and without drafts");
  app.Option("--model", a.model, "Checkpoint directory").Required();
  app.Option("--text", a.text, "File whose lines begin the prompts");
  app.Option("--chats", a.chats, "File with a chat on each line, instead of --text");
  app.Option("--algorithm", a.algorithm, "NGRAM, NEXTN, EAGLE, EAGLE3 or STANDALONE");
  app.Option("--steps", a.steps, "Maximum drafts per request and step, or auto");
  app.Option("--topk", a.topk, "Width of trees of drafts; 1: chains").Positive();
  app.Option("--rows", a.rows, "Rows of a verification; 0: of a chain with --steps drafts");
  app.Option("--draft", a.draft, "Draft model of STANDALONE, EAGLE and EAGLE3");
  app.Option("--quantization", a.quantization,
             "Quantization of the draft model's weights, or unquant");
  app.Option("--token-map", a.token_map,
             "Token ids that the draft model's head computes; switchyard token-map writes them");
  app.Option("--batch", a.batch, "Number of concurrent requests").Positive();
  app.Option("--prompts", a.prompts, "Maximum number of prompts").Positive();
  app.Option("--prompt", a.prompt, "Prompt tokens taken from each paragraph").Positive();
  app.Option("--tokens", a.tokens, "Tokens of an output").Positive();
  app.Option("--tp", a.tp, "Number of ranks").Positive();
  app.Option("--repeat", a.repeat, "Measured pairs of runs (with and without drafts)").Positive();
  app.Option("--temperature", a.temperature, "Sampling temperature; 0: greedy");
  app.Option("--simulate", a.simulate, "Simulated acceptance probability of a draft; -1: none");
  app.Option("--repetitions", a.repetitions, "How often each prompt repeats its paragraph")
      .Positive();
  if (const auto code = app.ParseMain(argc, argv)) return *code;
  try {
    bench::Bench(a);
  } catch (const std::exception& e) {
    fmt::print(stderr, "speculative_bench: {}\n", e.what());
    return 1;
  }
}
