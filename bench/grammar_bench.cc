// The cost of constrained decoding: time of a decode step with and without grammars, of the masks
// alone, and of compilation.
//
// Usage: grammar_bench MODEL_DIR [--batch 32] [--tokens 64] [--tp 1] [--repeat 5]
//        grammar_bench MODEL_DIR --jump-forward [--temperature 0] [--no-examples] [--tokens 64] …
//
// With --jump-forward, measures jump-forward decoding instead (bench/jump_forward.h).
//
// The time of masks is measured by replaying the outputs through the matchers on one thread. It is
// printed as a fraction of an unconstrained step. If nothing overlaps the computation of masks, a
// step becomes longer by this fraction.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <mutex>
#include <random>

#include "bench/jump_forward.h"
#include "core/command_line.h"
#include "core/error.h"
#include "core/json.h"
#include "engine/engine.h"
#include "grammar/compiler.h"
#include "model/config.h"
#include "server/front/grammars.h"

namespace switchyard::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<int32_t>;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Args {
  std::string model;
  int32_t batch = 32, tokens = 64, tp = 1, repeat = 5;
  bool jump_forward = false;
  double temperature = 0;    // with jump_forward
  bool no_examples = false;  // with jump_forward
};

// Grammars whose outputs are long enough for the measurement with any model.
std::vector<std::pair<std::string, GrammarSource>> Cases() {
  const auto schema = [](const char* text) {
    return JsonSchemaGrammar(nlohmann::ordered_json::parse(text));
  };
  return {
      {"regex letters", RegexGrammar("[a-z ]{4000}")},
      {"regex dates", RegexGrammar("(\\d{4}-(0[1-9]|1[0-2])-[0-3]\\d\\n){500}")},
      {"json any", schema(R"({"type": "array", "minItems": 100000})")},
      {"json records",
       schema(R"({"type": "array", "minItems": 100000, "items": {"type": "object", "properties": {
                     "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0,
                     "maximum": 150}, "tags": {"type": "array", "items": {"type": "string"}},
                     "kind": {"enum": ["red", "green", "blue"]}, "when": {"type": "string",
                     "format": "date"}}, "required": ["name", "age", "tags", "kind"]}})")},
      {"json keys", schema(R"({"type": "array", "minItems": 100000, "items": {"type": "object",
                        "additionalProperties": {"type": "number"}}})")}};
}

// One batch of requests, started together.
struct Run {
  double step_seconds = 0;  // mean time of a decode step
  std::vector<Ids> outputs;
};

class Measurement {
 public:
  explicit Measurement(const Args& args)
      : args_(args),
        config_{.model_path = args.model,
                .device = "cpu",
                .mesh = {.tp = args.tp, .ep = args.tp},
                .max_total_tokens = int64_t{args.batch} * (args.tokens + 48),
                .disable_radix_cache = true,
                .log_level = "warning"},
        engine_(config_),
        tokenizer_(Tokenizer::FromDirectory(args.model)) {}

  // `grammars` [batch] ids; 0: not constrained.
  Run Decode(const std::vector<uint64_t>& grammars) {
    struct State {
      std::mutex mutex;
      Clock::time_point first, last;
      size_t outputs = 0;
      std::vector<Ids> tokens;
      std::promise<void> done;
      int left = 0;
    };
    const auto state = std::make_shared<State>();
    state->tokens.resize(args_.batch);
    state->left = args_.batch;
    std::mt19937 random(1);
    for (int32_t i = 0; i < args_.batch; ++i) {
      EngineRequest request{.input_ids = Ids(16), .grammar = grammars[i]};
      for (int32_t& id : request.input_ids)
        id = static_cast<int32_t>(random() % engine_.plan().model.vocab_size);
      request.sampling.max_new_tokens = args_.tokens;
      request.sampling.seed = i;
      request.sampling.ignore_eos = true;
      engine_.Submit(std::move(request), [state, i](const RequestOutput& news) {
        const std::lock_guard lock(state->mutex);
        const auto now = Clock::now();
        // The first decode step begins when all requests have their first token.
        if (++state->outputs == state->tokens.size()) state->first = now;
        state->last = now;
        Ids& all = state->tokens[i];
        all.insert(all.end(), news.new_tokens.begin(), news.new_tokens.end());
        if (news.finish != FinishReason::kNone && --state->left == 0) state->done.set_value();
      });
    }
    state->done.get_future().wait();
    return {Seconds(state->last - state->first) / std::max(1, args_.tokens - 1),
            std::move(state->tokens)};
  }

  double MedianStep(const std::vector<uint64_t>& grammars, std::vector<Ids>* outputs) {
    std::vector<double> times;
    for (int32_t i = 0; i < args_.repeat; ++i) {
      Run run = Decode(grammars);
      times.push_back(run.step_seconds);
      if (outputs) *outputs = std::move(run.outputs);
    }
    return Median(times);
  }

  void Report() {
    const GrammarVocabulary vocabulary = VocabularyOf(*tokenizer_, engine_.plan().model.vocab_size,
                                                      engine_.plan().model.eos_token_ids);
    const auto start = Clock::now();
    const TokenTable table(vocabulary);
    fmt::print("vocabulary of {} tokens: {:.1f} ms to prepare\n", vocabulary.tokens.size(),
               1e3 * Seconds(Clock::now() - start));
    engine_.Tell(GrammarTokens{vocabulary.Encode()});
    const double plain = MedianStep(std::vector<uint64_t>(args_.batch, 0), nullptr);
    fmt::print("decode step of {} requests without grammars: {:.3f} ms\n\n", args_.batch,
               1e3 * plain);
    fmt::print("{:<15}{:>12}{:>12}{:>12}{:>14}{:>14}{:>12}\n", "grammar", "compile ms", "MiB sent",
               "read ms", "masks us/row", "masks/step", "step ms");
    std::vector<std::shared_ptr<const CompiledGrammar>> all;
    for (const auto& [name, source] : Cases()) {
      all.push_back(Define(name, source, table));
      Compare(std::vector(args_.batch, all.back()), std::vector<uint64_t>(args_.batch, all.size()),
              plain);
    }
    std::vector<std::shared_ptr<const CompiledGrammar>> mixed;
    std::vector<uint64_t> ids;
    for (int32_t i = 0; i < args_.batch; ++i) {
      mixed.push_back(all[i % all.size()]);
      ids.push_back(1 + i % all.size());
    }
    fmt::print("{:<15}{:>12}{:>12}{:>12}", "all mixed", "", "", "");
    Compare(mixed, ids, plain);
  }

 private:
  std::shared_ptr<const CompiledGrammar> Define(const std::string& name,
                                                const GrammarSource& source,
                                                const TokenTable& table) {
    const auto start = Clock::now();
    auto grammar = CompileGrammar(source, table);
    const auto compiled = Clock::now();
    const std::string bytes = grammar->ToBytes();
    const auto encoded = Clock::now();
    CompiledGrammar::FromBytes(bytes, table);
    const auto read = Clock::now();
    engine_.Tell(DefineGrammar{++defined_, bytes});
    fmt::print("{:<15}{:>12.1f}{:>12.2f}{:>12.1f}", name, 1e3 * Seconds(compiled - start),
               static_cast<double>(bytes.size()) / (1 << 20), 1e3 * Seconds(read - encoded));
    return grammar;
  }

  void Compare(const std::vector<std::shared_ptr<const CompiledGrammar>>& grammars,
               const std::vector<uint64_t>& ids, double plain) {
    std::vector<Ids> outputs;
    const double step = MedianStep(ids, &outputs);
    std::vector<uint32_t> mask(MaskWords(engine_.plan().model.vocab_size));
    size_t rows = 0;
    const auto start = Clock::now();
    for (size_t i = 0; i < outputs.size(); ++i) {
      GrammarMatcher matcher(grammars[i]);
      for (const int32_t id : outputs[i]) {
        matcher.FillMask(mask);
        if (!matcher.Accept(id)) throw Invalid("the grammar does not allow token {}", id);
        ++rows;
      }
    }
    const double row = Seconds(Clock::now() - start) / static_cast<double>(rows);
    fmt::print("{:>14.1f}{:>13.2f}%{:>12.3f}\n", 1e6 * row, 100 * row * args_.batch / plain,
               1e3 * step);
  }

  const Args args_;
  const EngineConfig config_;
  Engine engine_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  uint64_t defined_ = 0;
};

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  using namespace switchyard;
  bench::Args args;
  CommandLine app("Cost of constrained decoding on CPUs");
  app.Option("MODEL_DIR", args.model, "Checkpoint directory").Required();
  app.Option("--batch", args.batch, "Requests of a batch").Positive();
  app.Option("--tokens", args.tokens, "Output tokens of each request").Range(2, 4096);
  app.Option("--tp", args.tp, "Number of ranks").Positive();
  app.Option("--repeat", args.repeat, "Runs of each case; medians are printed").Positive();
  app.Switch("--jump-forward", args.jump_forward, "", "Measures jump-forward decoding");
  app.Switch("--no-examples", args.no_examples, "",
             "With --jump-forward: prompts without examples of outputs");
  app.Option("--temperature", args.temperature, "With --jump-forward; 0: greedy");
  if (const auto code = app.ParseMain(argc, argv)) return *code;
  try {
    if (args.jump_forward) {
      bench::ReportJumpForward({.model = args.model,
                                .tokens = args.tokens,
                                .tp = args.tp,
                                .repeat = args.repeat,
                                .temperature = args.temperature,
                                .examples = !args.no_examples});
    } else {
      bench::Measurement(args).Report();
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "grammar_bench: {}\n", e.what());
    return 1;
  }
}
