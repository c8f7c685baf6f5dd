#include "server/front/served_model.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/bounded_json.h"
#include "core/error.h"
#include "core/gguf_files.h"
#include "core/log.h"
#include "core/regular_file.h"
#include "engine/kept_gpu_memory.h"
#include "grammar/source.h"
#include "model/gguf/gguf_config.h"

namespace switchyard {
namespace {

constexpr uint64_t kMaxDefaultsBytes = 16 << 20;

// Reads one number of generation_config.json. Keeps `value` if the key is absent or null.
template <typename T>
void Take(const nlohmann::json& json, const char* key, const std::filesystem::path& file,
          T& value) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return;
  if (!it->is_number())
    throw Invalid("{}: {} is {}, want a number", file.string(), key, it->dump());
  value = it->get<T>();
}

// The text of generation_config.json, or its equivalent in a GGUF file.
std::optional<std::string> GenerationConfigOf(const std::filesystem::path& dir) {
  if (const auto gguf = FindGguf(dir)) return ReadGgufConfig(GgufFiles(*gguf)).generation;
  return ReadRegularFileIfExists(dir / "generation_config.json", kMaxDefaultsBytes);
}

SamplingParams SamplingDefaults(const std::filesystem::path& dir, int64_t vocab_size) {
  SamplingParams defaults;
  const std::filesystem::path file = dir / "generation_config.json";
  const auto text = GenerationConfigOf(dir);
  if (!text) return defaults;
  const auto json = ParseBoundedJson(*text, file.string());
  if (!json.is_object()) throw Invalid("{}: not a JSON object", file.string());
  Take(json, "temperature", file, defaults.temperature);
  Take(json, "top_p", file, defaults.top_p);
  Take(json, "top_k", file, defaults.top_k);
  Take(json, "min_p", file, defaults.min_p);
  Take(json, "repetition_penalty", file, defaults.repetition_penalty);
  if (defaults.top_k == 0) defaults.top_k = -1;  // in transformers, 0 means all tokens
  try {
    Validate(defaults, vocab_size);
  } catch (const Error& e) {
    throw Invalid("{}: {}", file.string(), e.what());
  }
  return defaults;
}

// With --load-format dummy the tokenizer may be absent: requests and responses then use token ids.
std::unique_ptr<Tokenizer> LoadTokenizer(const ServerArgs& args, const std::filesystem::path& dir) {
  if (args.engine.load_format != "dummy" || Tokenizer::HasFiles(dir))
    return Tokenizer::FromDirectory(dir);
  LOG_WARNING(
      "{} has no tokenizer: requests must send input_ids, and responses have output_ids only",
      dir.string());
  return Tokenizer::FromJson(R"({"model": {"type": "BPE", "vocab": {}, "merges": []}})",
                             "no tokenizer");
}

// Whether the vocabulary has the channel markers of harmony. A model with these markers writes
// channels whatever chat template is used.
bool HasChannels(const Tokenizer& tokenizer) {
  return tokenizer.Encode("<|channel|>", /*add_special_tokens=*/false).size() == 1 &&
         tokenizer.Encode("<|message|>", /*add_special_tokens=*/false).size() == 1;
}

OutputFormat FormatOf(const ServerArgs& args, const Tokenizer& tokenizer,
                      const ChatTemplate& chat) {
  OutputFormat format;
  const bool harmony = HasChannels(tokenizer);
  if (args.tool_call_parser == "auto") {
    format.calls =
        harmony ? FindCallFormat("gpt-oss") : DetectCallFormat(chat.Source(/*with_tools=*/true));
  } else {
    format.calls = FindCallFormat(args.tool_call_parser);  // nullptr for none
  }
  if (args.reasoning_parser == "auto") {
    format.reasoning = harmony ? FindReasoningFormat("gpt-oss")
                               : DetectReasoningFormat(chat.Source(/*with_tools=*/false));
  } else {
    format.reasoning = FindReasoningFormat(args.reasoning_parser);
  }
  return format;
}

}  // namespace

ServedModel LoadServedModel(const ServerArgs& args, const ModelConfig& config) {
  const std::filesystem::path& dir = args.engine.model_path;
  const std::filesystem::path text_dir =
      args.tokenizer_path.empty() ? dir : std::filesystem::path(args.tokenizer_path);
  const auto override_file = args.chat_template.empty()
                                 ? std::nullopt
                                 : std::optional<std::filesystem::path>(args.chat_template);
  ServedModel model{.name = args.served_model_name.empty() ? dir.string() : args.served_model_name,
                    .path = dir,
                    .config = config,
                    .tokenizer = LoadTokenizer(args, text_dir),
                    .chat_template = ChatTemplate::FromDirectory(text_dir, override_file),
                    .sampling_defaults = SamplingDefaults(dir, config.vocab_size)};
  model.output_format = FormatOf(args, *model.tokenizer, model.chat_template);
  if (model.tokenizer->VocabSize() > config.vocab_size) {
    // The model never samples ids beyond its vocabulary, so only prompts can have such ids. They
    // get an error.
    LOG_WARNING(
        "{}: ids up to {}, but config.json says vocab_size {}: prompts with larger ids are "
        "refused",
        text_dir.string(), model.tokenizer->VocabSize() - 1, config.vocab_size);
  }
  return model;
}

namespace {

// Limit of running and queued requests together; 0: no limit.
int32_t MaxOpen(const EngineConfig& config, const EnginePlan& plan, int64_t queued_per_running) {
  const int64_t running = int64_t{plan.max_running_requests} * config.mesh.attention_groups();
  const int64_t queued = config.max_queued_requests < 0 ? queued_per_running * running
                                                        : int64_t{config.max_queued_requests};
  if (queued == 0) return 0;
  return static_cast<int32_t>(
      std::min<int64_t>(running + queued, std::numeric_limits<int32_t>::max()));
}

// Whether prefix caches outlive the end of a rank. With several nodes, all ranks start again.
bool KeepsCache(const EngineConfig& config, const EnginePlan& plan) {
  if (plan.cuda) return KeepsGpuCache(config, plan);
  return plan.ranks_of_host >= config.mesh.world() && !config.disable_radix_cache &&
         !plan.model.has_states();
}

}  // namespace

Front::Limits FrontLimits(const ServerArgs& args, const EnginePlan& plan,
                          int64_t queued_per_running) {
  const EngineConfig& config = args.engine;
  return {.vocab_size = plan.model.vocab_size,
          .context_length = plan.context_length,
          .cache_tokens = plan.num_pages * config.page_size,
          .max_open = MaxOpen(config, plan, queued_per_running),
          .has_experts = plan.model.has_moe(),
          .keeps_cache = KeepsCache(config, plan),
          .pooling = plan.model.pooling ? plan.model.pooling->type : Pooling::kNone,
          .queue_timeout = std::chrono::duration<double>(args.http.queue_timeout_seconds),
          .running_timeout = std::chrono::duration<double>(args.http.running_timeout_seconds)};
}

std::unique_ptr<Grammars> MakeGrammars(const ServerArgs& args, const ServedModel& model) {
  if (args.grammar_backend == "none") return nullptr;
  // White space of constrained JSON, unless a request chooses another one.
  const JsonSpace space = args.json_disable_any_whitespace
                              ? JsonSpace::kPython
                              : *JsonSpaceOfPattern(args.json_whitespace);
  return std::make_unique<Grammars>(*model.tokenizer, model.config.vocab_size,
                                    model.config.eos_token_ids, space);
}

}  // namespace switchyard
