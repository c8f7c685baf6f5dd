#include <algorithm>

#include "server/openapi/schemas.h"

namespace switchyard::openapi {
namespace {

constexpr char kBool[] = R"({"type":"boolean","default":false})";
constexpr char kTrue[] = R"({"type":"boolean","default":true})";
constexpr char kText[] = R"({"type":"string"})";
constexpr char kTexts[] =
    R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]})";
constexpr char kIds[] = R"({"type":"array","items":{"$ref":"#/components/schemas/TokenId"}})";
// Token ids, or a list of lists of token ids.
constexpr char kIdLists[] =
    R"({"anyOf":[{"type":"array","items":{"$ref":"#/components/schemas/TokenId"}},)"
    R"({"type":"array","items":{"type":"array","items":)"
    R"({"$ref":"#/components/schemas/TokenId"}}}]})";
// A prompt of token ids, or a list of such prompts.
constexpr char kPrompt[] =
    R"({"type":"array","items":{"$ref":"#/components/schemas/TokenId"},"minItems":1})";
constexpr char kPrompts[] =
    R"({"anyOf":[{"type":"array","items":{"$ref":"#/components/schemas/TokenId"},"minItems":1},)"
    R"({"type":"array","items":{"type":"array","items":{"$ref":"#/components/schemas/TokenId"},)"
    R"("minItems":1},"minItems":1}]})";
constexpr char kTextPrompts[] =
    R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"},"minItems":1}]})";
constexpr char kRooms[] =
    R"({"anyOf":[{"type":"integer","minimum":0},{"type":"array","items":{"type":"integer",)"
    R"("minimum":0}}],"description":"for --disaggregation-mode: chosen by the router"})";
constexpr char kPorts[] =
    R"({"anyOf":[{"type":"integer","minimum":1,"maximum":65535},{"type":"array","items":)"
    R"({"type":"integer","minimum":1,"maximum":65535}}],"description":)"
    R"("--disaggregation-bootstrap-port of the prefill worker"})";
constexpr char kCount[] = R"({"type":"integer","minimum":0,"maximum":2147483647})";
constexpr char kObject[] = R"({"type":"object"})";
constexpr char kPenalty[] = R"({"type":"number","minimum":-2,"maximum":2,"default":0})";
constexpr char kPromptLogprobs[] =
    R"({"anyOf":[{"type":"integer","minimum":-1,"description":"alternatives at each position of )"
    R"(the prompt; -1: the whole vocabulary"},{"const":false}]})";
constexpr char kStop[] =
    R"({"anyOf":[{"type":"string","maxLength":1024},{"type":"array","maxItems":64,)"
    R"("items":{"type":"string","minLength":1,"maxLength":1024}}],)"
    R"("description":"texts that end the generation, at most 1024 bytes each"})";
constexpr char kTools[] = R"({"type":"array","items":{"$ref":"#/components/schemas/Tool"}})";

// A constraint of the output: text, or a schema as an object or its text.
constexpr char kConstraint[] = R"({"anyOf":[{"type":"string"},{"const":false}]})";
constexpr char kJsonConstraint[] =
    R"({"anyOf":[{"type":"object"},{"type":"string","description":"JSON"},{"const":false}]})";
constexpr char kOutputFormat[] =
    R"({"type":"object","properties":{"type":{"type":"string"},"schema":{"type":"object"}}})";

// Fields that have the same meaning and form in all requests.
constexpr FieldSchema kShared[] = {
    {"model", R"({"type":"string","description":"the served model; other names give a 404"})"},
    {"frequency_penalty", kPenalty},
    {"presence_penalty", kPenalty},
    {"repetition_penalty", R"({"type":"number","exclusiveMinimum":0,"maximum":2})"},
    {"temperature", R"({"type":"number","minimum":0,"description":"0: greedy"})"},
    {"top_p", R"({"type":"number","exclusiveMinimum":0,"maximum":1})"},
    {"top_k", R"({"type":"integer","minimum":-1,"maximum":2147483647,"description":"-1, 0: all"})"},
    {"min_p", R"({"type":"number","minimum":0,"maximum":1})"},
    {"seed", R"({"type":"integer","minimum":-9223372036854775808,"maximum":18446744073709551615})"},
    {"stop", kStop},
    {"stop_token_ids", kIds},
    {"allowed_token_ids", kIds},
    {"bad_words", kTexts},
    {"logit_bias",
     R"({"type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100},)"
     R"("propertyNames":{"pattern":"^[0-9]+$"},"description":"a bias for each token id"})"},
    {"n", R"({"type":"integer","minimum":1,"maximum":1024,"default":1})"},
    {"ignore_eos", kBool},
    {"skip_special_tokens", kTrue},
    {"no_stop_trim", kBool},
    {"include_stop_str_in_output", kBool},
    {"stream", kBool},
    {"rid", kTexts},
    {"request_id", kText},
    {"extra_key", kTexts},
    {"cache_salt", kTexts},
    {"routed_dp_rank", kCount},
    {"data_parallel_rank", kCount},
    {"bootstrap_host", kTexts},
    {"bootstrap_port", kPorts},
    {"bootstrap_room", kRooms},
    {"priority", R"({"type":"integer","minimum":-2147483648,"maximum":2147483647})"},
    {"echo", kBool},
    {"return_token_ids", kBool},
    {"return_prompt_token_ids", kBool},
    {"return_cached_tokens_details", kBool},
    {"return_tokens_as_token_ids", kBool},
    {"tools", kTools},
    {"chat_template_kwargs", kObject},
    {"parallel_tool_calls", kTrue},
    {"regex", kConstraint},
    {"ebnf", kConstraint},
    {"json_schema", kJsonConstraint},
    {"structural_tag", kJsonConstraint},
    {"guided_json", kJsonConstraint},
    {"guided_regex", kConstraint},
    {"guided_choice", R"({"anyOf":[{"type":"array","items":{"type":"string"}},{"const":false}]})"},
    {"guided_grammar", kConstraint},
    {"guided_json_object", kBool},
    {"guided_whitespace_pattern", kConstraint},
    {"structured_outputs", R"({"anyOf":[{"type":"object"},{"const":false}]})"},
};

// Fields of both OpenAI endpoints for completions.
constexpr FieldSchema kOpenAi[] = {
    {"max_tokens", kCount},
    {"max_completion_tokens", kCount},
    {"min_tokens", kCount},
    {"best_of", R"({"type":"integer","minimum":1,"maximum":2147483647,"description":"1 or n"})"},
    {"response_format", kObject},
    {"stream_options",
     R"({"type":"object","properties":{"include_usage":{"type":"boolean","default":false},)"
     R"("continuous_usage_stats":{"type":"boolean","default":false},)"
     R"("include_obfuscation":{"const":false}},"description":"only with stream"})"},
    {"truncate_prompt_tokens", R"({"anyOf":[{"const":-1},{"type":"integer","minimum":1}],)"
                               R"("description":"-1: the context length minus max_tokens"})"},
    {"truncation_side", R"({"enum":["left","right"],"default":"left"})"},
    {"prompt_logprobs", kPromptLogprobs},
};

constexpr FieldSchema kConversation[] = {
    {"messages",
     R"({"type":"array","items":{"$ref":"#/components/schemas/Message"},"minItems":1})"},
    {"tool_choice",
     R"({"anyOf":[{"enum":["auto","none","required"]},{"type":"object"}],"default":"auto"})"},
    {"reasoning_effort", R"({"anyOf":[{"enum":["none","minimal","low","medium","high","xhigh",)"
                         R"("max"]},{"type":"number","minimum":0,"exclusiveMaximum":1}]})"},
    {"reasoning",
     R"({"type":"object","properties":{"enabled":{"type":["boolean","null"]},"effort":{}}})"},
    {"thinking", R"({"type":"object","required":["type"],"properties":)"
                 R"({"type":{"enum":["enabled","disabled"]}}})"},
    {"enable_thinking", R"({"type":"boolean"})"},
    {"documents", R"({"type":"array"})"},
    {"continue_final_message", kBool},
    {"add_generation_prompt", kTrue},
    {"add_special_tokens", kBool},
};

constexpr FieldSchema kChat[] = {
    {"logprobs", kBool},
    {"top_logprobs", R"({"type":"integer","minimum":0,"maximum":20,)"
                     R"("description":"above 0, only with logprobs"})"},
    {"input_ids", kPrompt},
    {"return_prompt_text", kBool},
    {"separate_reasoning", kTrue},
    {"stream_reasoning", kTrue},
    {"include_reasoning", kTrue},
};

constexpr FieldSchema kCompletion[] = {
    {"prompt", R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"},)"
               R"("minItems":1},{"type":"array","items":{"$ref":"#/components/schemas/TokenId"},)"
               R"("minItems":1},{"type":"array","items":{"type":"array","items":)"
               R"({"$ref":"#/components/schemas/TokenId"},"minItems":1},"minItems":1}]})"},
    {"logprobs", R"({"anyOf":[{"type":"integer","minimum":0,"maximum":20},{"const":false}]})"},
    {"add_special_tokens", kTrue},
};

// Fields of /generate. Many have a value for all prompts, or a list with one value for each prompt.
constexpr FieldSchema kGenerate[] = {
    {"text", kTextPrompts},
    {"input_ids", kPrompts},
    {"sampling_params",
     R"({"anyOf":[{"$ref":"#/components/schemas/SamplingParams"},{"type":"array","items":)"
     R"({"anyOf":[{"$ref":"#/components/schemas/SamplingParams"},{"type":"null"}]}}]})"},
    {"return_logprob",
     R"({"anyOf":[{"type":"boolean"},{"type":"array","items":{"type":["boolean","null"]}}]})"},
    {"logprob_start_len",
     R"({"anyOf":[{"type":"integer","minimum":-1},{"type":"array","items":)"
     R"({"type":["integer","null"],"minimum":-1}}],"description":"-1: no log-probabilities of the )"
     R"(prompt"})"},
    {"top_logprobs_num",
     R"({"anyOf":[{"type":"integer","minimum":0,"maximum":1024},{"type":"array","items":)"
     R"({"type":["integer","null"],"minimum":0,"maximum":1024}}]})"},
    {"token_ids_logprob",
     R"({"anyOf":[{"type":"array","items":{"$ref":"#/components/schemas/TokenId"}},)"
     R"({"type":"array","items":{"type":["array","null"],"items":)"
     R"({"$ref":"#/components/schemas/TokenId"}}}]})"},
    {"return_text_in_logprobs", kBool},
    {"return_routed_experts", kBool},
    {"routed_experts_start_len", kCount},
    {"session_params", R"({"$ref":"#/components/schemas/SessionParams"})"},
};

constexpr FieldSchema kSamplingParams[] = {
    {"max_new_tokens", kCount},
    {"min_new_tokens", kCount},
    {"n", R"({"type":"integer","minimum":1,"maximum":4096,"default":1})"},
    {"sampling_seed",
     R"({"type":"integer","minimum":-9223372036854775808,"maximum":18446744073709551615})"},
    {"stream_interval", R"({"type":"integer","minimum":1,"maximum":2147483647})"},
};

constexpr FieldSchema kTokenize[] = {
    {"prompt", kTexts},
    {"return_token_strs", kBool},
};

constexpr FieldSchema kDetokenize[] = {
    {"tokens", kIdLists},
    {"skip_special_tokens", kBool},
};

constexpr FieldSchema kParseFunctionCall[] = {{"text", kText}, {"tool_call_parser", kText}};
constexpr FieldSchema kSeparateReasoning[] = {
    {"text", kText}, {"reasoning_parser", kText}, {"return_blocks", kBool}};

constexpr FieldSchema kMessages[] = {
    {"max_tokens", kCount},
    {"messages",
     R"({"type":"array","items":{"$ref":"#/components/schemas/AnthropicMessage"},"minItems":1})"},
    {"system", R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object"}}]})"},
    {"stop_sequences", kTexts},
    {"tools", R"({"type":"array","items":{"$ref":"#/components/schemas/AnthropicTool"}})"},
    {"tool_choice",
     R"({"type":"object","properties":{"type":{"enum":["auto","any","tool","none"]},)"
     R"("name":{"type":"string"},"disable_parallel_tool_use":{"type":"boolean"}}})"},
    {"output_format", kOutputFormat},
    {"output_config", R"({"type":"object","properties":{"format":{"type":"object"}}})"},
    {"thinking", R"({"type":"object","required":["type"],"properties":)"
                 R"({"type":{"enum":["enabled","disabled","adaptive"]}}})"},
};

constexpr FieldSchema kResponses[] = {
    {"input", R"({"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object"}}]})"},
    {"instructions", kText},
    {"max_output_tokens", kCount},
    {"previous_response_id", kText},
    {"reasoning", kObject},
    {"store", kTrue},
    {"stream_options", R"({})"},
    {"text", R"({"type":"object","properties":{"format":{"type":"object"}}})"},
    {"tool_choice", R"({"anyOf":[{"type":"string"},{"type":"object"}],"default":"auto"})"},
    {"tools", R"({"type":"array","items":{"type":"object"}})"},
    {"metadata", R"({})"},
    {"include", kTexts},
};

constexpr FieldSchema kAbort[] = {{"rid", kText}, {"abort_all", kBool}};

constexpr FieldSchema kStartProfile[] = {
    {"output_dir", kText},
    {"start_step", R"({"type":"integer","minimum":0,"maximum":1000000000})"},
    {"num_steps", R"({"type":"integer","minimum":1,"maximum":1000000000})"},
    {"activities", R"({"type":"array","items":{"enum":["CPU","GPU"]},"minItems":1})"},
    {"profile_by_stage", kBool},
    {"record_shapes", kBool},
    {"profile_prefix",
     R"re({"type":"string","maxLength":100,"pattern":"^([A-Za-z0-9_+-][A-Za-z0-9._+-]*)?$"})re"},
    {"profile_id",
     R"re({"type":"string","maxLength":100,"pattern":"^([A-Za-z0-9_+-][A-Za-z0-9._+-]*)?$"})re"},
};

constexpr char kSize[] = R"({"type":"integer","minimum":1,"maximum":1000000})";
constexpr char kRanks[] = R"({"type":"array","items":{"type":"integer","minimum":0}})";

constexpr FieldSchema kScaleElasticEp[] = {
    {"new_tp_size", kSize},
    {"new_ep_size", kSize},
    {"new_dp_size", kSize},
    {"new_data_parallel_size", kSize},
    {"leave", kRanks},
    {"come", R"({"type":"integer","minimum":0,"maximum":1000000})"},
    {"load_beside", R"({"type":"boolean"})"},
    {"restart",
     R"({"anyOf":[{"type":"boolean"},{"type":"array","items":{"type":"integer","minimum":0}}]})"},
};

constexpr FieldSchema kUpdateWeights[] = {
    {"model_path", R"({"type":"string","minLength":1})"},
    {"load_format", R"({"enum":["auto","safetensors"]})"},
    {"abort_all_requests", R"({"type":"boolean"})"},
    {"weight_version", R"({"type":"string"})"},
    {"flush_cache", R"({"const":true})"},
};
constexpr FieldSchema kUpdateFromTensor[] = {
    {"shared_memory", R"({"type":"array","minItems":1,"items":{"type":"string","minLength":1}})"},
    {"abort_all_requests", R"({"type":"boolean"})"},
    {"weight_version", R"({"type":"string"})"},
    {"flush_cache", R"({"const":true})"},
};
constexpr FieldSchema kUpdateWeightVersion[] = {
    {"new_version", R"({"type":"string"})"},
    {"abort_all_requests", R"({"type":"boolean"})"},
};
constexpr FieldSchema kMemoryTags[] = {
    {"tags", R"({"type":"array","items":{"enum":["weights","kv_cache","cuda_graph"]}})"},
};
constexpr FieldSchema kGetWeights[] = {
    {"name", R"({"type":"string"})"},
    {"truncate_size", R"({"type":"integer","minimum":1,"maximum":1000000})"},
};

constexpr FieldSchema kCheckWeights[] = {
    {"action", R"({"enum":["checksum","snapshot","compare"]})"},
};

constexpr char kNeedsMessages[] =
    R"({"anyOf":[{"required":["messages"]},{"required":["input_ids"]}]})";

constexpr Body kBodies[] = {
    {"ChatRequest", RequestKind::kChat, kNeedsMessages},
    {"CompletionRequest", RequestKind::kCompletion, R"({"required":["prompt"]})"},
    {"ResponseRequest", RequestKind::kResponses, R"({"required":["input"]})"},
    {"MessageRequest", RequestKind::kMessages, R"({"required":["messages","max_tokens"]})"},
    {"CountTokensRequest", RequestKind::kMessages, R"({"required":["messages"]})"},
    {"GenerateRequest", RequestKind::kGenerate,
     R"({"anyOf":[{"required":["text"]},{"required":["input_ids"]}]})"},
    {"SamplingParams", RequestKind::kSamplingParams, ""},
    {"TokenizeRequest", RequestKind::kTokenize,
     R"({"anyOf":[{"required":["prompt"]},{"required":["messages"]}]})"},
    {"DetokenizeRequest", RequestKind::kDetokenize, R"({"required":["tokens"]})"},
    {"ParseFunctionCallRequest", RequestKind::kParseFunctionCall, R"({"required":["text"]})"},
    {"SeparateReasoningRequest", RequestKind::kSeparateReasoning, R"({"required":["text"]})"},
    {"EmbeddingRequest", RequestKind::kEmbeddings, R"({"required":["input"]})"},
    {"EncodeRequest", RequestKind::kEncode,
     R"({"anyOf":[{"required":["text"]},{"required":["input_ids"]}]})"},
    {"ClassifyRequest", RequestKind::kClassify, ""},
    {"ScoreRequest", RequestKind::kScore, ""},
    {"RerankRequest", RequestKind::kRerank, R"({"required":["query","documents"]})"},
    {"AbortRequest", RequestKind::kAbort, ""},
    {"StartProfileRequest", RequestKind::kStartProfile, R"({"additionalProperties":false})"},
    {"ScaleElasticEpRequest", RequestKind::kScaleElasticEp,
     R"({"additionalProperties":false,"minProperties":1})"},
    {"PauseGenerationRequest", RequestKind::kPauseGeneration, R"({"additionalProperties":false})"},
    {"ContinueGenerationRequest", RequestKind::kContinueGeneration,
     R"({"additionalProperties":false})"},
    {"SlowDownRequest", RequestKind::kSlowDown, R"({"additionalProperties":false})"},
    {"SetInternalStateRequest", RequestKind::kSetInternalState,
     R"({"additionalProperties":false,"required":["server_args"]})"},
    {"ConfigureLoggingRequest", RequestKind::kConfigureLogging,
     R"({"additionalProperties":false})"},
    {"OpenSessionRequest", RequestKind::kOpenSession,
     R"({"additionalProperties":false,"required":["capacity_of_str_len"]})"},
    {"CloseSessionRequest", RequestKind::kCloseSession,
     R"({"additionalProperties":false,"required":["session_id"]})"},
    {"SessionParams", RequestKind::kSessionParams,
     R"({"additionalProperties":false,"required":["id"]})"},
    {"UpdateWeightsRequest", RequestKind::kUpdateWeights,
     R"({"additionalProperties":false,"required":["model_path"]})"},
    {"UpdateFromTensorRequest", RequestKind::kUpdateFromTensor,
     R"({"additionalProperties":false,"required":["shared_memory"]})"},
    {"UpdateWeightVersionRequest", RequestKind::kUpdateWeightVersion,
     R"({"additionalProperties":false,"required":["new_version"]})"},
    {"MemoryTagsRequest", RequestKind::kMemoryTags, R"({"additionalProperties":false})"},
    {"GetWeightsRequest", RequestKind::kGetWeights,
     R"({"additionalProperties":false,"required":["name"]})"},
    {"CheckWeightsRequest", RequestKind::kCheckWeights,
     R"({"additionalProperties":false,"required":["action"]})"},
};

std::vector<FieldSchema> Join(std::span<const FieldSchema> a, std::span<const FieldSchema> b,
                              std::span<const FieldSchema> c = {}) {
  std::vector<FieldSchema> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), c.begin(), c.end());
  return all;
}

const char* Find(std::span<const FieldSchema> schemas, std::string_view name) {
  const auto found = std::ranges::find(schemas, name, &FieldSchema::name);
  return found == schemas.end() ? nullptr : found->schema;
}

// Adds null to the values of a schema.
Json OrNull(Json schema) {
  if (schema.contains("anyOf")) {
    schema["anyOf"].push_back({{"type", "null"}});
  } else if (schema.contains("enum")) {
    schema["enum"].push_back(nullptr);
  } else if (schema.contains("type")) {
    schema["type"] = Json::array({schema["type"], "null"});
  }
  return schema;
}

// The values that CheckFields accepts for a refused field.
Json RefusedSchema(const KnownField& field) {
  Json values = Json::array({nullptr, false});
  if (field.use == FieldUse::kRefused)
    values.insert(values.end(), {"", Json::array(), Json::object()});
  if (*field.neutral != '\0') {
    for (const Json& value : Json::parse(field.neutral)) values.push_back(value);
  }
  return {{"description", std::string(field.name) + " " + field.why},
          {"enum", std::move(values)},
          {"x-refused", true}};
}

Json FieldJson(RequestKind kind, const KnownField& field, bool required) {
  switch (field.use) {
    case FieldUse::kHonoured: {
      const char* schema = SchemaOf(kind, field.name);
      Json parsed = schema ? Json::parse(schema) : Json::object();
      return required ? parsed : OrNull(std::move(parsed));
    }
    case FieldUse::kHint:
      return {{"description", "accepted, without effect"}};
    case FieldUse::kRefused:
    case FieldUse::kRefusedEvenEmpty:
      return RefusedSchema(field);
  }
  return Json::object();
}

}  // namespace

std::span<const FieldSchema> SharedSchemas() { return kShared; }

std::span<const FieldSchema> OwnSchemas(RequestKind kind) {
  static const std::vector<FieldSchema> chat = Join(kOpenAi, kConversation, kChat);
  static const std::vector<FieldSchema> completion = Join(kOpenAi, kCompletion);
  static const std::vector<FieldSchema> tokenize = Join(kTokenize, kConversation);
  switch (kind) {
    case RequestKind::kChat:
      return chat;
    case RequestKind::kCompletion:
      return completion;
    case RequestKind::kGenerate:
      return kGenerate;
    case RequestKind::kSamplingParams:
      return kSamplingParams;
    case RequestKind::kTokenize:
      return tokenize;
    case RequestKind::kDetokenize:
      return kDetokenize;
    case RequestKind::kParseFunctionCall:
      return kParseFunctionCall;
    case RequestKind::kSeparateReasoning:
      return kSeparateReasoning;
    case RequestKind::kMessages:
      return kMessages;
    case RequestKind::kResponses:
      return kResponses;
    case RequestKind::kAbort:
      return kAbort;
    case RequestKind::kStartProfile:
      return kStartProfile;
    case RequestKind::kScaleElasticEp:
      return kScaleElasticEp;
    case RequestKind::kPauseGeneration:
    case RequestKind::kContinueGeneration:
    case RequestKind::kSlowDown:
    case RequestKind::kSetInternalState:
    case RequestKind::kConfigureLogging:
    case RequestKind::kOpenSession:
    case RequestKind::kCloseSession:
    case RequestKind::kSessionParams:
      return ControlFieldSchemas(kind);
    case RequestKind::kUpdateWeights:
      return kUpdateWeights;
    case RequestKind::kUpdateFromTensor:
      return kUpdateFromTensor;
    case RequestKind::kUpdateWeightVersion:
      return kUpdateWeightVersion;
    case RequestKind::kMemoryTags:
      return kMemoryTags;
    case RequestKind::kGetWeights:
      return kGetWeights;
    case RequestKind::kCheckWeights:
      return kCheckWeights;
    default:
      return PoolingFieldSchemas(kind);
  }
}

const char* SchemaOf(RequestKind kind, std::string_view name) {
  const char* own = Find(OwnSchemas(kind), name);
  return own ? own : Find(kShared, name);
}

std::span<const Body> Bodies() { return kBodies; }

Json BodySchema(const Body& body) {
  Json schema = {{"type", "object"}};
  if (*body.rules != '\0') schema.update(Json::parse(body.rules));
  const Json required = schema.value("required", Json::array());
  Json& properties = schema["properties"] = Json::object();
  for (const KnownField& field : KnownFields(body.kind)) {
    const bool is_required = std::ranges::find(required, Json(field.name)) != required.end();
    properties[field.name] = FieldJson(body.kind, field, is_required);
  }
  return schema;
}

}  // namespace switchyard::openapi
