#include "server/api/known_fields.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "core/log.h"
#include "server/api/known_weight_fields.h"

namespace switchyard {
namespace {

using enum FieldUse;

constexpr char kAdapters[] = "is not supported: this server has no LoRA adapters";
constexpr char kTextOnly[] = "is not supported: input and output are text only";
constexpr char kDisaggregated[] =
    "is not supported: want bootstrap_host, bootstrap_port and bootstrap_room";
constexpr char kProcessors[] = "is not supported: this server has no custom logit processors";
constexpr char kNotSupported[] = "is not supported";
constexpr char kHidden[] = "is not supported: this server returns no internal states";
constexpr char kSession[] = "is only supported by POST /generate";
constexpr char kBeams[] = "is not supported: this server has no beam search";

// Fields of both chat and completion requests: OpenAI's own, then SGLang's, then vLLM's.
constexpr KnownField kOpenAi[] = {
    {"model", kHonoured},
    {"frequency_penalty", kHonoured},
    {"logit_bias", kHonoured},
    {"logprobs", kHonoured},
    {"max_tokens", kHonoured},
    {"n", kHonoured},
    {"presence_penalty", kHonoured},
    {"response_format", kHonoured},
    {"seed", kHonoured},
    {"stop", kHonoured},
    {"stream", kHonoured},
    {"stream_options", kHonoured},
    {"temperature", kHonoured},
    {"top_p", kHonoured},
    {"user", kHint},
    {"metadata", kHint},
    {"safety_identifier", kHint},
    {"prompt_cache_key", kHint},
    {"prompt_cache_retention", kHint},
    {"prompt_cache_options", kHint},  // prefixes are always cached
    {"service_tier", kRefused, "is not supported: this server has a single service tier",
     R"(["auto", "default"])"},
    {"store", kRefused, "is not supported: only POST /v1/responses stores responses"},

    {"top_k", kHonoured},
    {"min_p", kHonoured},
    {"min_tokens", kHonoured},
    {"repetition_penalty", kHonoured},
    {"stop_token_ids", kHonoured},
    {"no_stop_trim", kHonoured},
    {"ignore_eos", kHonoured},
    {"skip_special_tokens", kHonoured},
    {"rid", kHonoured},
    {"extra_key", kHonoured},
    {"cache_salt", kHonoured},
    {"routed_dp_rank", kHonoured},
    {"data_parallel_rank", kHonoured},
    {"return_token_ids", kHonoured},
    {"session_id", kHint},
    {"custom_labels", kHint},
    {"regex", kHonoured},
    {"ebnf", kHonoured},
    {"json_schema", kHonoured},
    {"structural_tag", kHonoured},
    {"stop_regex", kRefused, kNotSupported},
    {"lora_path", kRefused, kAdapters},
    {"session_params", kRefused, kSession},
    {"custom_params", kRefused, kProcessors},
    {"custom_logit_processor", kRefused, kProcessors},
    {"return_hidden_states", kRefused, kHidden},
    {"return_routed_experts", kRefused, "is only supported by POST /generate"},
    {"routed_experts_start_len", kRefused, "is only supported by POST /generate", "[0]"},
    {"return_cached_tokens_details", kHonoured},
    {"return_sampling_mask", kRefused, kNotSupported},
    {"priority", kHonoured},
    {"images_config", kRefused, kTextOnly},
    {"ngram_corpus_id", kRefused, kNotSupported},
    {"bootstrap_host", kHonoured},
    {"bootstrap_port", kHonoured},
    {"bootstrap_room", kHonoured},
    {"disagg_prefill_dp_rank", kRefused, kDisaggregated},

    {"include_stop_str_in_output", kHonoured},
    {"truncate_prompt_tokens", kHonoured},
    {"truncation_side", kHonoured},
    {"prompt_logprobs", kHonoured},
    {"allowed_token_ids", kHonoured},
    {"bad_words", kHonoured},
    {"request_id", kHonoured},
    {"return_tokens_as_token_ids", kHonoured},
    // Affects only transformers' slow tokenizers; this server has fast ones.
    {"spaces_between_special_tokens", kHint},
    {"guided_decoding_backend", kHint},  // this server has a single backend
    {"guided_json", kHonoured},
    {"guided_regex", kHonoured},
    {"guided_choice", kHonoured},
    {"guided_grammar", kHonoured},
    {"guided_json_object", kHonoured},
    {"guided_whitespace_pattern", kHonoured},
    {"structured_outputs", kHonoured},
    {"use_beam_search", kRefused, kBeams},
    {"early_stopping", kRefused, kBeams},
    {"length_penalty", kRefused, kBeams, "[1]"},
    {"best_of", kHonoured},
    {"logits_processors", kRefused, kProcessors},
    {"logit_processors", kRefused, kProcessors},
    {"mm_processor_kwargs", kRefused, kTextOnly},
    {"media_io_kwargs", kRefused, kTextOnly},
    {"kv_transfer_params", kRefused, kDisaggregated},
    {"vllm_xargs", kRefused, kProcessors},
    {"repetition_detection", kRefused, kNotSupported},
    {"thinking_token_budget", kRefused, kNotSupported},
    {"return_token_offsets", kRefused, kNotSupported},
    {"watermarking", kRefused, kNotSupported},
    {"logprob_token_ids", kRefused, "is only supported by POST /generate: use token_ids_logprob"},
    {"return_weight_versions", kRefused, kNotSupported},
    {"routed_experts_prompt_start", kRefused, "is only supported by POST /generate", "[0]"},
    {"mm_payload", kRefused, kTextOnly, R"(["tensors", "none"])"},
    {"return_mm_kwargs", kRefused, kTextOnly},
    {"ec_transfer_params", kRefused, kDisaggregated},
};

// Fields that determine the prompt of a chat request. /tokenize has them too.
constexpr KnownField kConversation[] = {
    {"messages", kHonoured},
    {"tools", kHonoured},
    {"tool_choice", kHonoured},
    {"reasoning_effort", kHonoured},
    {"reasoning", kHonoured},
    {"thinking", kHonoured},         // APIs of DeepSeek and GLM
    {"enable_thinking", kHonoured},  // API of Qwen
    {"documents", kHonoured},
    {"chat_template_kwargs", kHonoured},
    {"continue_final_message", kHonoured},
    {"add_generation_prompt", kHonoured},
    {"chat_template", kRefused, "is not supported: the server uses its own template"},
};

constexpr KnownField kChat[] = {
    {"max_completion_tokens", kHonoured},
    {"top_logprobs", kHonoured},
    {"parallel_tool_calls", kHonoured},
    {"input_ids", kHonoured},
    {"return_prompt_token_ids", kHonoured},
    {"return_prompt_text", kHonoured},
    {"add_special_tokens", kHonoured},
    {"echo", kHonoured},
    {"separate_reasoning", kHonoured},
    {"stream_reasoning", kHonoured},
    {"include_reasoning", kHonoured},
    {"functions", kRefused, "is not supported: use tools"},
    {"function_call", kRefused, "is not supported: use tool_choice", R"(["auto", "none"])"},
    {"modalities", kRefused, kTextOnly, R"([["text"]])"},
    {"audio", kRefused, kTextOnly},
    {"prediction", kRefused, kNotSupported},
    {"verbosity", kRefused, kNotSupported, R"(["medium"])"},
    {"web_search_options", kRefusedEvenEmpty, "is not supported: this server has no web search"},
    {"moderation", kRefused, kNotSupported},
    {"return_meta_info", kRefused, kNotSupported},
    {"return_assistant_tokens_mask", kRefused, kNotSupported},
    {"task", kRefused, kNotSupported},
    {"max_dynamic_patch", kRefused, kTextOnly},
    {"min_dynamic_patch", kRefused, kTextOnly},
    {"use_audio_in_video", kRefused, kTextOnly},
};

constexpr KnownField kCompletion[] = {
    {"prompt", kHonoured},
    {"echo", kHonoured},
    {"max_completion_tokens", kHonoured},
    {"add_special_tokens", kHonoured},
    {"return_prompt_text", kRefused, "is only supported by POST /v1/chat/completions: use echo"},
    {"suffix", kRefused, "is not supported: this server has no fill-in-the-middle"},
    {"prompt_embeds", kRefused, "is not supported: use prompt"},
};

// SGLang's GenerateReqInput (managers/io_struct.py).
constexpr KnownField kGenerate[] = {
    {"text", kHonoured},
    {"input_ids", kHonoured},
    {"sampling_params", kHonoured},
    {"rid", kHonoured},
    {"return_logprob", kHonoured},
    {"logprob_start_len", kHonoured},
    {"top_logprobs_num", kHonoured},
    {"token_ids_logprob", kHonoured},
    {"return_text_in_logprobs", kHonoured},
    {"stream", kHonoured},
    {"return_routed_experts", kHonoured},
    {"routed_experts_start_len", kHonoured},
    {"return_prompt_token_ids", kHonoured},
    {"routed_dp_rank", kHonoured},
    {"data_parallel_rank", kHonoured},
    {"extra_key", kHonoured},
    {"cache_salt", kHonoured},
    {"session_id", kHint},
    {"conversation_id", kHint},
    {"routing_key", kHint},
    {"custom_labels", kHint},
    {"log_metrics", kHint},
    {"no_logs", kHint},  // read by Recorder: the request's text is not recorded
    {"external_trace_header", kHint},
    {"received_time", kHint},
    {"kv_router_hint", kHint},
    {"input_embeds", kRefused, "is not supported: use text or input_ids"},
    {"positional_embed_overrides", kRefused, kNotSupported},
    {"image_data", kRefused, kTextOnly},
    {"video_data", kRefused, kTextOnly},
    {"audio_data", kRefused, kTextOnly},
    {"mm_hashes", kRefused, kTextOnly},
    {"mm_content_hashes", kRefused, kTextOnly},
    {"use_audio_in_video", kRefused, kTextOnly},
    {"video_config", kRefused, kTextOnly},
    {"images_config", kRefused, kTextOnly},
    {"modalities", kRefused, kTextOnly, R"([["text"]])"},
    {"max_dynamic_patch", kRefused, kTextOnly},
    {"min_dynamic_patch", kRefused, kTextOnly},
    {"image_max_dynamic_patch", kRefused, kTextOnly},
    {"video_max_dynamic_patch", kRefused, kTextOnly},
    {"need_wait_for_mm_inputs", kRefused, kTextOnly},
    {"num_items_assigned", kRefused, kTextOnly},
    {"encoder_urls", kRefused, kTextOnly},
    {"session_params", kHonoured},
    {"lora_path", kRefused, kAdapters},
    {"lora_id", kRefused, kAdapters},
    {"custom_logit_processor", kRefused, kProcessors},
    {"return_hidden_states", kRefused, kHidden},
    {"return_entropy", kRefused, kNotSupported},
    {"return_sampling_mask", kRefused, kNotSupported},
    {"return_indexer_topk", kRefused, kHidden},
    {"return_flat_raw_top_logprobs", kRefused, kNotSupported},
    {"return_flat_raw_top_logprobs_b64", kRefused, kNotSupported},
    {"return_bytes", kRefused, kTextOnly},
    {"require_reasoning", kRefused, kNotSupported},
    {"max_thinking_tokens", kRefused, kNotSupported},
    {"background", kRefused, "is not supported: the answer comes on the request's connection"},
    {"multi_item_delimiter_indices", kRefused, kNotSupported},
    {"priority", kHonoured},
    {"ngram_corpus_id", kRefused, kNotSupported},
    {"bootstrap_host", kHonoured},
    {"bootstrap_port", kHonoured},
    {"bootstrap_room", kHonoured},
    {"bootstrap_pair_key", kRefused, kDisaggregated},
    {"decode_tp_size", kRefused, kDisaggregated},
    {"disagg_prefill_dp_rank", kRefused, kDisaggregated},
    {"http_worker_ipc", kRefused, kNotSupported},
};

// SGLang's SamplingParams (sampling/sampling_params.py), and vLLM's lists of tokens.
constexpr KnownField kSamplingParams[] = {
    {"max_new_tokens", kHonoured},
    {"min_new_tokens", kHonoured},
    {"stop", kHonoured},
    {"stop_token_ids", kHonoured},
    {"temperature", kHonoured},
    {"top_p", kHonoured},
    {"top_k", kHonoured},
    {"min_p", kHonoured},
    {"frequency_penalty", kHonoured},
    {"presence_penalty", kHonoured},
    {"repetition_penalty", kHonoured},
    {"n", kHonoured},
    {"ignore_eos", kHonoured},
    {"skip_special_tokens", kHonoured},
    {"no_stop_trim", kHonoured},
    {"include_stop_str_in_output", kHonoured},
    {"logit_bias", kHonoured},
    {"sampling_seed", kHonoured},
    {"stream_interval", kHonoured},
    {"allowed_token_ids", kHonoured},
    {"bad_words", kHonoured},
    {"spaces_between_special_tokens", kHint},
    {"stop_regex", kRefused, kNotSupported},
    {"json_schema", kHonoured},
    {"regex", kHonoured},
    {"ebnf", kHonoured},
    {"structural_tag", kHonoured},
    {"custom_params", kRefused, kProcessors},
    {"beam_width", kRefused, kBeams, "[1]"},
    {"use_beam_search", kRefused, kBeams},
};

constexpr KnownField kTokenize[] = {
    {"model", kHonoured},
    {"prompt", kHonoured},
    {"add_special_tokens", kHonoured},
    {"return_token_strs", kHonoured},
    {"mm_processor_kwargs", kRefused, kTextOnly},
    {"media_io_kwargs", kRefused, kTextOnly},
};

constexpr KnownField kDetokenize[] = {
    {"model", kHonoured}, {"tokens", kHonoured}, {"skip_special_tokens", kHonoured}};

// SGLang's ParseFunctionCallReq and SeparateReasoningReqInput (managers/io_struct.py).
constexpr KnownField kParseFunctionCall[] = {
    {"text", kHonoured}, {"tools", kHonoured}, {"tool_call_parser", kHonoured}, {"rid", kHint}};

constexpr KnownField kSeparateReasoning[] = {{"text", kHonoured},
                                             {"reasoning_parser", kHonoured},
                                             {"return_blocks", kHonoured},
                                             {"rid", kHint}};

// SGLang's AbortReq and ProfileReqInput (managers/io_struct.py).
constexpr KnownField kAbort[] = {{"rid", kHonoured},
                                 {"abort_all", kHonoured},
                                 {"finished_reason", kHint},
                                 {"abort_message", kHint}};

constexpr KnownField kStartProfile[] = {
    {"output_dir", kHonoured},
    {"start_step", kHonoured},
    {"num_steps", kHonoured},
    {"activities", kHonoured},
    {"profile_by_stage", kHonoured},
    {"record_shapes", kHonoured},
    {"profile_prefix", kHonoured},
    {"profile_id", kHonoured},
    {"with_stack", kRefused, "is not supported: operations have no Python stack"},
    {"merge_profiles", kRefused,
     "is not supported: each rank writes a file; a viewer can open several"},
    {"profile_stages", kRefused,
     "is not supported: profile_by_stage always records both prefill and decode"},
};

// SGLang's new_ep_size, vLLM's new_data_parallel_size and drain_timeout, and fields of this server.
// drain_timeout has no effect, because requests continue in the new layout.
constexpr KnownField kScaleElasticEp[] = {
    {"new_tp_size", kHonoured}, {"new_ep_size", kHonoured},
    {"new_dp_size", kHonoured}, {"new_data_parallel_size", kHonoured},
    {"leave", kHonoured},       {"come", kHonoured},
    {"restart", kHonoured},     {"load_beside", kHonoured},
    {"drain_timeout", kHint}};

std::vector<KnownField> Join(std::span<const KnownField> a, std::span<const KnownField> b,
                             std::span<const KnownField> c = {}) {
  std::vector<KnownField> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), c.begin(), c.end());
  return all;
}

const KnownField* FindField(RequestKind kind, std::string_view name) {
  using Table = std::map<std::string_view, const KnownField*>;
  static const std::map<RequestKind, Table> kTables = [] {
    std::map<RequestKind, Table> tables;
    for (int kind = 0; kind <= static_cast<int>(RequestKind::kRerank); ++kind) {
      const auto k = static_cast<RequestKind>(kind);
      for (const KnownField& field : KnownFields(k)) tables[k][field.name] = &field;
    }
    return tables;
  }();
  const Table& table = kTables.at(kind);
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

bool IsEmpty(const Json& value) {
  if (value.is_null() || value == false || value == "false") return true;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  if (!value.is_structured()) return false;
  return std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_null(); });
}

bool IsDisabled(const KnownField& field, const Json& value) {
  if (value.is_null() || value == false) return true;
  if (field.use == kRefused && IsEmpty(value)) return true;
  if (*field.neutral == '\0') return false;
  const Json neutral = Json::parse(field.neutral);
  return std::find(neutral.begin(), neutral.end(), value) != neutral.end();
}

}  // namespace

std::span<const KnownField> KnownFields(RequestKind kind) {
  static const std::vector<KnownField> chat = Join(kOpenAi, kConversation, kChat);
  static const std::vector<KnownField> completion = Join(kOpenAi, kCompletion);
  static const std::vector<KnownField> tokenize = Join(kTokenize, kConversation);
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
    case RequestKind::kResponses:
      return KnownAgentFields(kind);
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
      return KnownControlFields(kind);
    case RequestKind::kUpdateWeights:
    case RequestKind::kUpdateFromTensor:
    case RequestKind::kUpdateWeightVersion:
    case RequestKind::kMemoryTags:
    case RequestKind::kGetWeights:
    case RequestKind::kCheckWeights:
      return KnownWeightFields(kind);
    default:
      return KnownPoolingFields(kind);
  }
}

bool IsRefused(const KnownField& field, const Json& value) {
  const bool refused = field.use == kRefused || field.use == kRefusedEvenEmpty;
  return refused && !IsDisabled(field, value);
}

bool UnknownFields::Log(const std::string& name) {
  constexpr size_t kMaxNames = 256, kMaxNameLength = 80;
  std::string shown = Dump(Json(name.substr(0, kMaxNameLength)));  // escapes control characters
  {
    std::lock_guard lock(mutex_);
    if (seen_.size() >= kMaxNames || !seen_.insert(shown).second) return false;
  }
  LOG_WARNING("ignored unknown request field {}; further requests with it are not logged", shown);
  return true;
}

void CheckFields(const Fields& fields, RequestKind kind, UnknownFields& unknown) {
  for (const auto& [name, value] : fields.object().items()) {
    const KnownField* field = FindField(kind, name);
    if (!field) {
      unknown.Log(fields.Name(name.c_str()));
    } else if (IsRefused(*field, value)) {
      throw InvalidField(fields.Name(field->name), "{} {}", fields.Name(field->name), field->why);
    }
  }
}

void RefuseUnknownFields(const Json& body, RequestKind kind) {
  for (const auto& [name, value] : body.items()) {
    const KnownField* field = FindField(kind, name);
    if (!field) {
      std::vector<std::string_view> names;
      for (const KnownField& known : KnownFields(kind)) names.emplace_back(known.name);
      throw InvalidField(name, "{} is unknown, want {}", name, Joined(names, ", "));
    }
    if (IsRefused(*field, value)) throw InvalidField(field->name, "{} {}", field->name, field->why);
  }
}

}  // namespace switchyard
