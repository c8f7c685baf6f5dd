#include "server/api/known_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace switchyard {
namespace {

using ::testing::HasSubstr;

std::string Check(RequestKind kind, const std::string& body, const std::string& prefix = "") {
  const Json json = Json::parse(body);
  UnknownFields unknown;
  try {
    CheckFields(Fields(json, prefix), kind, unknown);
  } catch (const RequestError& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalid);
    EXPECT_THAT(e.what(), HasSubstr(e.param()));
    return e.param();
  }
  return "";
}

std::set<std::string> Names(RequestKind kind) {
  std::set<std::string> names;
  for (const KnownField& field : KnownFields(kind))
    EXPECT_TRUE(names.insert(field.name).second) << field.name << " is listed twice";
  return names;
}

// openai-python 1.x, types/chat/completion_create_params.py and types/completion_create_params.py.
constexpr const char* kOpenAiChat[] = {"messages",
                                       "model",
                                       "audio",
                                       "frequency_penalty",
                                       "function_call",
                                       "functions",
                                       "logit_bias",
                                       "logprobs",
                                       "max_completion_tokens",
                                       "max_tokens",
                                       "metadata",
                                       "modalities",
                                       "n",
                                       "parallel_tool_calls",
                                       "prediction",
                                       "presence_penalty",
                                       "prompt_cache_key",
                                       "reasoning_effort",
                                       "response_format",
                                       "safety_identifier",
                                       "seed",
                                       "service_tier",
                                       "stop",
                                       "store",
                                       "stream",
                                       "stream_options",
                                       "temperature",
                                       "tool_choice",
                                       "tools",
                                       "top_logprobs",
                                       "top_p",
                                       "user",
                                       "verbosity",
                                       "web_search_options"};
constexpr const char* kOpenAiCompletion[] = {"model",
                                             "prompt",
                                             "best_of",
                                             "echo",
                                             "frequency_penalty",
                                             "logit_bias",
                                             "logprobs",
                                             "max_tokens",
                                             "n",
                                             "presence_penalty",
                                             "seed",
                                             "stop",
                                             "stream",
                                             "stream_options",
                                             "suffix",
                                             "temperature",
                                             "top_p",
                                             "user"};
// SGLang, entrypoints/openai/protocol.py: fields of chat and completion requests that OpenAI does
// not have.
constexpr const char* kSglang[] = {"top_k",
                                   "min_p",
                                   "min_tokens",
                                   "regex",
                                   "ebnf",
                                   "repetition_penalty",
                                   "stop_token_ids",
                                   "stop_regex",
                                   "no_stop_trim",
                                   "ignore_eos",
                                   "skip_special_tokens",
                                   "lora_path",
                                   "session_id",
                                   "session_params",
                                   "custom_logit_processor",
                                   "custom_params",
                                   "images_config",
                                   "rid",
                                   "extra_key",
                                   "cache_salt",
                                   "ngram_corpus_id",
                                   "priority",
                                   "bootstrap_host",
                                   "bootstrap_port",
                                   "bootstrap_room",
                                   "routed_dp_rank",
                                   "disagg_prefill_dp_rank",
                                   "data_parallel_rank",
                                   "return_hidden_states",
                                   "return_routed_experts",
                                   "routed_experts_start_len",
                                   "return_cached_tokens_details",
                                   "return_token_ids"};
constexpr const char* kSglangChat[] = {
    "return_prompt_token_ids", "return_meta_info",   "task",
    "continue_final_message",  "separate_reasoning", "stream_reasoning",
    "chat_template_kwargs",    "max_dynamic_patch",  "min_dynamic_patch",
    "use_audio_in_video",      "input_ids",          "reasoning"};
// vLLM, entrypoints/openai/{chat_completion,completion}/protocol.py, and guided_ fields of earlier
// versions.
constexpr const char* kVllm[] = {"use_beam_search",
                                 "length_penalty",
                                 "include_stop_str_in_output",
                                 "spaces_between_special_tokens",
                                 "truncate_prompt_tokens",
                                 "truncation_side",
                                 "prompt_logprobs",
                                 "allowed_token_ids",
                                 "bad_words",
                                 "structured_outputs",
                                 "request_id",
                                 "return_tokens_as_token_ids",
                                 "kv_transfer_params",
                                 "vllm_xargs",
                                 "repetition_detection",
                                 "guided_json",
                                 "guided_regex",
                                 "guided_choice",
                                 "guided_grammar",
                                 "guided_decoding_backend",
                                 "guided_whitespace_pattern",
                                 "logits_processors",
                                 "add_special_tokens",
                                 "thinking_token_budget",
                                 "return_token_offsets"};
constexpr const char* kVllmChat[] = {"include_reasoning",
                                     "echo",
                                     "add_generation_prompt",
                                     "documents",
                                     "chat_template",
                                     "media_io_kwargs",
                                     "mm_processor_kwargs",
                                     "return_prompt_text",
                                     "return_assistant_tokens_mask",
                                     "best_of"};

TEST(KnownFields, HoldEveryFieldOfTheThreeInterfaces) {
  const std::set<std::string> chat = Names(RequestKind::kChat);
  const std::set<std::string> completion = Names(RequestKind::kCompletion);
  for (const char* name : kOpenAiChat) EXPECT_TRUE(chat.contains(name)) << name;
  for (const char* name : kSglangChat) EXPECT_TRUE(chat.contains(name)) << name;
  for (const char* name : kVllmChat) EXPECT_TRUE(chat.contains(name)) << name;
  for (const char* name : kOpenAiCompletion) EXPECT_TRUE(completion.contains(name)) << name;
  EXPECT_TRUE(completion.contains("prompt_embeds"));
  for (const auto& list :
       {std::span<const char* const>(kSglang), std::span<const char* const>(kVllm)}) {
    for (const char* name : list) {
      EXPECT_TRUE(chat.contains(name)) << name;
      EXPECT_TRUE(completion.contains(name)) << name;
    }
  }
  for (const RequestKind kind : {RequestKind::kGenerate, RequestKind::kSamplingParams,
                                 RequestKind::kTokenize, RequestKind::kDetokenize})
    EXPECT_FALSE(Names(kind).empty());
}

// A refused field is an error that names it, unless its value disables the feature.
TEST(KnownFields, RefusedOnesAreNamedAndEmptyOnesPass) {
  for (const RequestKind kind :
       {RequestKind::kChat, RequestKind::kCompletion, RequestKind::kGenerate,
        RequestKind::kSamplingParams, RequestKind::kTokenize}) {
    for (const KnownField& field : KnownFields(kind)) {
      const bool refused =
          field.use == FieldUse::kRefused || field.use == FieldUse::kRefusedEvenEmpty;
      const auto body = [&](const std::string& value) {
        return fmt::format(R"({{"{}": {}}})", field.name, value);
      };
      for (const char* value : {R"("x")", "7", "[5]", R"({"a": 1})"})
        EXPECT_EQ(Check(kind, body(value)), refused ? field.name : "") << field.name << value;
      for (const char* value : {"null", "false"}) EXPECT_EQ(Check(kind, body(value)), "");
      if (field.use != FieldUse::kRefusedEvenEmpty) {
        for (const char* value : {R"("")", "[]", "{}", R"({"json": null})"})
          EXPECT_EQ(Check(kind, body(value)), "") << field.name;
      }
      if (*field.neutral == '\0') continue;
      for (const Json& value : Json::parse(field.neutral))
        EXPECT_EQ(Check(kind, body(value.dump())), "") << field.name;
    }
  }
  EXPECT_EQ(Check(RequestKind::kChat, R"({"web_search_options": {}})"), "web_search_options");
  EXPECT_EQ(Check(RequestKind::kChat, R"({"modalities": ["text", "audio"]})"), "modalities");
  EXPECT_EQ(Check(RequestKind::kChat, R"({"length_penalty": 1.0, "priority": 0})"), "");
  EXPECT_EQ(Check(RequestKind::kSamplingParams, R"({"stop_regex": "a"})", "sampling_params."),
            "sampling_params.stop_regex");
}

// openai-python, types/embedding_create_params.py; SGLang's and vLLM's requests for pooled vectors.
TEST(KnownFields, RequestsForPooledVectorsAreComplete) {
  const std::map<RequestKind, std::vector<const char*>> kFields = {
      {RequestKind::kEmbeddings,
       {"input", "model", "dimensions", "encoding_format", "user", "rid", "priority",
        "truncate_prompt_tokens", "use_activation"}},
      {RequestKind::kEncode, {"text", "input_ids", "image_data", "sampling_params", "dimensions"}},
      {RequestKind::kClassify, {"input", "use_activation", "add_special_tokens", "request_id"}},
      {RequestKind::kScore,
       {"query", "items", "label_token_ids", "apply_softmax", "item_first", "text_1", "text_2",
        "queries", "documents", "data_1", "data_2"}},
      {RequestKind::kRerank, {"query", "documents", "top_n", "return_documents", "instruct"}}};
  for (const auto& [kind, fields] : kFields) {
    const std::set<std::string> names = Names(kind);
    for (const char* field : fields) EXPECT_TRUE(names.contains(field)) << field;
  }
  EXPECT_EQ(Check(RequestKind::kRerank, R"({"rank_fields": ["title"]})"), "rank_fields");
  EXPECT_EQ(Check(RequestKind::kRerank, R"({"rank_fields": ["text"]})"), "");
}

// openai-python 3.57, types/responses/response_create_params.py; anthropic-python 2.14,
// types/beta/message_create_params.py; vLLM 0.33, entrypoints/openai/chat_completion/protocol.py.
TEST(KnownFields, HoldThoseOfRecentClients) {
  const std::map<RequestKind, std::vector<const char*>> kFields = {
      {RequestKind::kChat,
       {"prompt_cache_options", "watermarking", "logprob_token_ids", "return_weight_versions",
        "routed_experts_prompt_start", "mm_payload", "return_mm_kwargs", "ec_transfer_params"}},
      {RequestKind::kResponses,
       {"access_programs", "background_options", "context_management", "image", "include",
        "max_tool_calls", "moderation", "prompt_cache_options", "top_logprobs", "truncation"}},
      {RequestKind::kMessages,
       {"billing_policy", "cache_control", "compaction", "container", "context_management",
        "diagnostics", "fallbacks", "inference_geo", "output_config", "speed", "thread",
        "user_profile_id"}}};
  for (const auto& [kind, fields] : kFields) {
    const std::set<std::string> names = Names(kind);
    for (const char* field : fields) EXPECT_TRUE(names.contains(field)) << field;
  }
  EXPECT_EQ(Check(RequestKind::kMessages, R"({"speed": "standard", "fallbacks": []})"), "");
  EXPECT_EQ(Check(RequestKind::kMessages, R"({"speed": "fast"})"), "speed");
  EXPECT_EQ(Check(RequestKind::kResponses, R"({"moderation": {"model": "m"}})"), "moderation");
}

// SGLang, managers/io_struct.py: members of BaseReq.
TEST(KnownFields, ControlRequestsHaveThoseOfTheirBase) {
  for (const RequestKind kind :
       {RequestKind::kPauseGeneration, RequestKind::kContinueGeneration, RequestKind::kSlowDown,
        RequestKind::kConfigureLogging, RequestKind::kOpenSession, RequestKind::kCloseSession,
        RequestKind::kUpdateWeights, RequestKind::kUpdateFromTensor,
        RequestKind::kUpdateWeightVersion, RequestKind::kMemoryTags, RequestKind::kGetWeights,
        RequestKind::kCheckWeights})
    EXPECT_NO_THROW(
        RefuseUnknownFields(Json::parse(R"({"rid": "a", "http_worker_ipc": "b"})"), kind));
}

// An endpoint supports a field that determines the prompt only if SGLang or vLLM defines the field
// for that endpoint.
TEST(KnownFields, PromptFieldsBelongToTheirEndpoints) {
  for (const char* field : {"echo", "add_special_tokens", "return_cached_tokens_details"}) {
    const std::string body = fmt::format(R"({{"{}": true}})", field);
    EXPECT_EQ(Check(RequestKind::kChat, body), "") << field;
    EXPECT_EQ(Check(RequestKind::kCompletion, body), "") << field;
  }
  EXPECT_EQ(Check(RequestKind::kChat, R"({"return_prompt_text": true})"), "");
  EXPECT_EQ(Check(RequestKind::kCompletion, R"({"return_prompt_text": true})"),
            "return_prompt_text");
  EXPECT_EQ(Check(RequestKind::kTokenize, R"({"add_special_tokens": true})"), "");
}

TEST(KnownFields, UnknownOnesAreLoggedOnce) {
  UnknownFields unknown;
  const Json json = Json::parse(R"({"temprature": 1, "top_p": 1})");
  CheckFields(Fields(json, "sampling_params."), RequestKind::kSamplingParams, unknown);
  EXPECT_FALSE(unknown.Log("sampling_params.temprature"));
  // CheckFields did not log this field, because it is known.
  EXPECT_TRUE(unknown.Log("sampling_params.top_p"));
  int logged = 2;
  for (int i = 0; i < 1000; ++i) logged += unknown.Log(fmt::format("field{}", i));
  EXPECT_EQ(logged, 256);  // at most 256 names are stored
}

}  // namespace
}  // namespace switchyard
