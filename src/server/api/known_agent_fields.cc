#include "server/api/known_fields.h"

namespace switchyard {
namespace {

using enum FieldUse;

constexpr char kNotSupported[] = "is not supported";

// Anthropic's Messages API (anthropic-python, types/message_create_params.py).
constexpr KnownField kMessages[] = {
    {"model", kHonoured},
    {"max_tokens", kHonoured},
    {"messages", kHonoured},
    {"system", kHonoured},
    {"stop_sequences", kHonoured},
    {"stream", kHonoured},
    {"temperature", kHonoured},
    {"top_p", kHonoured},
    {"top_k", kHonoured},
    {"tools", kHonoured},
    {"tool_choice", kHonoured},
    {"thinking", kHonoured},
    {"metadata", kHint},
    {"cache_control", kHint},       // prefixes are always cached
    {"context_management", kHint},  // this server removes nothing from the context
    {"diagnostics", kHint},
    {"billing_policy", kHint},
    {"user_profile_id", kHint},
    {"inference_geo", kHint},
    {"service_tier", kHint},
    {"speed", kRefused, "is not supported: want standard", R"(["standard"])"},
    {"container", kRefused, kNotSupported},
    {"compaction", kRefused, "is not supported: this server removes nothing from the context"},
    {"fallbacks", kRefused, "is not supported: this server has one model"},
    {"thread", kRefused, kNotSupported},
    {"mcp_servers", kRefused, "is not supported: the server itself runs no tools"},
    {"output_format", kHonoured},
    {"output_config", kHonoured},
    // Of this server: a router sets them for a prefill and a decode worker.
    {"seed", kHonoured},
    {"bootstrap_host", kHonoured},
    {"bootstrap_port", kHonoured},
    {"bootstrap_room", kHonoured},
};

// OpenAI's Responses API (openai-python, types/responses/response_create_params.py), and sampling
// fields of SGLang.
constexpr KnownField kResponses[] = {
    {"model", kHonoured},
    {"input", kHonoured},
    {"instructions", kHonoured},
    {"max_output_tokens", kHonoured},
    {"parallel_tool_calls", kHonoured},
    {"previous_response_id", kHonoured},
    {"reasoning", kHonoured},
    {"store", kHonoured},
    {"stream", kHonoured},
    {"stream_options", kHonoured},
    {"temperature", kHonoured},
    {"text", kHonoured},
    {"tool_choice", kHonoured},
    {"tools", kHonoured},
    {"top_p", kHonoured},
    {"metadata", kHonoured},
    {"include", kHonoured},
    {"top_k", kHonoured},
    {"min_p", kHonoured},
    {"seed", kHonoured},
    {"stop", kHonoured},
    {"frequency_penalty", kHonoured},
    {"presence_penalty", kHonoured},
    {"repetition_penalty", kHonoured},
    {"chat_template_kwargs", kHonoured},
    {"bootstrap_host", kHonoured},
    {"bootstrap_port", kHonoured},
    {"bootstrap_room", kHonoured},
    {"user", kHint},
    {"safety_identifier", kHint},
    {"prompt_cache_key", kHint},
    {"prompt_cache_retention", kHint},
    {"prompt_cache_options", kHint},  // prefixes are always cached
    {"access_programs", kHint},
    {"context_management", kRefused,
     "is not supported: this server removes nothing from the context"},
    {"moderation", kRefused, kNotSupported},
    {"image", kRefused, "is not supported: output is text only"},
    {"background_options", kRefused,
     "is not supported: the answer comes on the request's connection"},
    {"service_tier", kRefused, "is not supported: this server has a single service tier",
     R"(["auto", "default"])"},
    {"truncation", kRefused, "is not supported: want disabled", R"(["disabled"])"},
    {"background", kRefused, "is not supported: the answer comes on the request's connection"},
    {"conversation", kRefused, "is not supported: use previous_response_id"},
    {"max_tool_calls", kRefused, "is not supported: the server itself runs no tools"},
    {"prompt", kRefused, "is not supported: this server stores no prompts"},
    {"top_logprobs", kRefused, kNotSupported, "[0]"},
};

}  // namespace

std::span<const KnownField> KnownAgentFields(RequestKind kind) {
  if (kind == RequestKind::kMessages) return kMessages;
  return kResponses;
}

}  // namespace switchyard
