#include "bench/jump_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "engine/engine.h"
#include "grammar/compiler.h"
#include "server/front/grammars.h"

namespace switchyard::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<int32_t>;

constexpr int32_t kBatches[] = {1, 32};
constexpr int kExamples = 3;

struct Case {
  std::string name;
  GrammarSource source;
  std::string example;  // the beginning of an output
};

// Grammars whose outputs are long enough for the measurement with any model.
std::vector<Case> Cases() {
  const auto records = nlohmann::ordered_json::parse(
      R"({"type": "array", "minItems": 1000, "items": {"type": "object", "properties": {
          "first_name": {"type": "string", "pattern": "[A-Z][a-z]{2,8}"}, "age": {"type": "integer",
          "minimum": 0, "maximum": 150}, "favourite_color": {"enum": ["red", "green", "blue"]},
          "occupation": {"const": "programmer"}}, "required": ["first_name", "age",
          "favourite_color", "occupation"], "additionalProperties": false}})");
  const std::string compact =
      R"([{"first_name":"Ada","age":36,"favourite_color":"red","occupation":"programmer"},)";
  const std::string spaced =
      R"([{"first_name": "Ada", "age": 36, "favourite_color": "red", "occupation": "programmer"}, )";
  const std::string call =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": "
      "2}}\n</tool_call>\n";
  return {{"records, no space", JsonSchemaGrammar(records, JsonSpace::kNone), compact},
          {"records, as Python", JsonSchemaGrammar(records, JsonSpace::kPython), spaced},
          {"records, any space", JsonSchemaGrammar(records, JsonSpace::kAny), spaced},
          {"tool calls",
           RegexGrammar("(<tool_call>\\n\\{\"name\": \"get_weather\", \"arguments\": \\{\"city\": "
                        "\"[A-Z][a-z]{2,8}\", \"days\": [1-9]\\}\\}\\n</tool_call>\\n){1000}"),
           call},
          {"dates", RegexGrammar("(\\d{4}-(0[1-9]|1[0-2])-[0-3]\\d\\n){500}"), "2024-05-12\n"},
          {"letters", RegexGrammar("[a-z ]{4000}"), "the letters of a text"}};
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

EngineConfig ConfigOf(const JumpForwardArgs& args, bool jumps) {
  EngineConfig config;
  config.model_path = args.model;
  config.device = "cpu";
  config.mesh = {.tp = args.tp, .ep = args.tp};
  config.disable_jump_forward = !jumps;
  config.max_total_tokens = int64_t{32} * (args.tokens + 512);
  config.disable_radix_cache = true;
  config.log_level = "warning";
  return config;
}

struct Run {
  double tokens_per_second = 0;
  std::vector<Ids> outputs;
};

// `batch` requests with the grammar, started together. The time includes their short prompts.
Run Generate(Engine& engine, const JumpForwardArgs& args, const Ids& prompt, int32_t batch,
             uint64_t grammar) {
  std::mutex mutex;
  std::condition_variable done;
  int32_t open = batch;
  Run run{.outputs = std::vector<Ids>(batch)};
  const auto start = Clock::now();
  for (int32_t i = 0; i < batch; ++i) {
    EngineRequest request{.input_ids = prompt, .grammar = grammar};
    request.sampling.max_new_tokens = args.tokens;
    request.sampling.temperature = static_cast<float>(args.temperature);
    request.sampling.seed = i;
    engine.Submit(std::move(request), [&, i](const RequestOutput& news) {
      const std::lock_guard lock(mutex);
      Ids& ids = run.outputs[i];
      ids.insert(ids.end(), news.new_tokens.begin(), news.new_tokens.end());
      if (news.finish == FinishReason::kNone) return;
      --open;
      done.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return open == 0; });
  size_t tokens = 0;
  for (const Ids& ids : run.outputs) tokens += ids.size();
  run.tokens_per_second =
      static_cast<double>(tokens) / std::chrono::duration<double>(Clock::now() - start).count();
  return run;
}

double Ratio(int64_t a, int64_t b) {
  return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
}

void Compare(Engine& plain, Engine& jumping, const JumpForwardArgs& args, const Ids& prompt,
             int32_t batch, uint64_t grammar) {
  std::vector<double> before, after, ratios;
  EngineStats first;
  for (int32_t i = 0; i <= args.repeat; ++i) {
    const Run a = Generate(plain, args, prompt, batch, grammar);
    if (i == 1) first = Total(jumping.Stats());
    const Run b = Generate(jumping, args, prompt, batch, grammar);
    if (a.outputs != b.outputs) throw Invalid("outputs differ: a bug");
    if (i == 0) continue;  // warm-up
    before.push_back(a.tokens_per_second);
    after.push_back(b.tokens_per_second);
    ratios.push_back(after.back() / before.back());
  }
  const EngineStats last = Total(jumping.Stats());
  const int64_t tokens = last.decode_tokens - first.decode_tokens;
  const int64_t drafts = last.forced_tokens - first.forced_tokens;
  const int64_t accepted = last.accepted_forced_tokens - first.accepted_forced_tokens;
  fmt::print("{:>7}{:>13.2f}{:>11.2f}{:>11.3f}{:>12.1f}{:>12.1f}{:>8.2f}\n", batch,
             Ratio(tokens, tokens - accepted),
             Ratio(drafts, last.forced_steps - first.forced_steps), Ratio(accepted, drafts),
             Median(before), Median(after), Median(ratios));
}

}  // namespace

void ReportJumpForward(const JumpForwardArgs& args) {
  const auto tokenizer = Tokenizer::FromDirectory(args.model);
  Engine plain(ConfigOf(args, false)), jumping(ConfigOf(args, true));
  const ModelConfig& model = plain.plan().model;
  const GrammarVocabulary vocabulary =
      VocabularyOf(*tokenizer, model.vocab_size, model.eos_token_ids);
  const TokenTable table(vocabulary);
  for (Engine* engine : {&plain, &jumping}) engine->Tell(GrammarTokens{vocabulary.Encode()});
  fmt::print("{:<20}{:>7}{:>13}{:>11}{:>11}{:>12}{:>12}{:>8}\n", "grammar", "batch", "tokens/step",
             "drafts", "accepted", "tokens/s", "with drafts", "ratio");
  uint64_t id = 0;
  for (const auto& [name, source, example] : Cases()) {
    ++id;
    std::string text = "The data:\n";
    for (int i = 0; args.examples && i < kExamples; ++i) text += example + "\n";
    const Ids prompt = tokenizer->Encode(text, /*add_special_tokens=*/false);
    const std::string bytes = CompileGrammar(source, table)->ToBytes();
    for (Engine* engine : {&plain, &jumping}) engine->Tell(DefineGrammar{id, bytes});
    for (const int32_t batch : kBatches) {
      fmt::print("{:<20}", name);
      Compare(plain, jumping, args, prompt, batch, id);
    }
  }
}

}  // namespace switchyard::bench
