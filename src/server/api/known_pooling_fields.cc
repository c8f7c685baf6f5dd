#include <vector>

#include "server/api/known_fields.h"

namespace switchyard {
namespace {

using enum FieldUse;

constexpr char kTextOnly[] = "is not supported: input is text only";
constexpr char kNotSupported[] = "is not supported";
constexpr char kAdapters[] = "is not supported: this server has no LoRA adapters";
constexpr char kHidden[] = "is not supported: this server returns no internal states";

// Fields of all requests for pooled vectors: SGLang's, then vLLM's PoolingBasicRequestMixin.
constexpr KnownField kCommon[] = {
    {"model", kHonoured},
    {"user", kHint},
    {"rid", kHonoured},
    {"priority", kHonoured},
    {"routed_dp_rank", kHonoured},
    {"data_parallel_rank", kHonoured},
    {"extra_key", kHonoured},
    {"cache_salt", kHonoured},
    {"routing_key", kHint},
    {"custom_labels", kHint},
    {"session_id", kHint},
    {"lora_path", kRefused, kAdapters},
    {"request_id", kHonoured},
    {"truncate_prompt_tokens", kHonoured},
    {"truncation_side", kHonoured},
    {"mm_processor_kwargs", kRefused, kTextOnly},
    {"media_io_kwargs", kRefused, kTextOnly},
    {"padding", kRefused, "is not supported: prompts are never padded", R"(["do_not_pad"])"},
    {"task", kRefused, kNotSupported},
    {"softmax", kRefused, "is not supported: use use_activation"},
};

// Prompts in `input` (vLLM's CompletionRequestMixin and ChatRequestMixin).
constexpr KnownField kInput[] = {
    {"input", kHonoured},
    {"add_special_tokens", kHonoured},
    {"use_activation", kHonoured},
    {"messages", kRefused, "is not supported: use input"},
    {"add_generation_prompt", kRefused, "is not supported: use input"},
    {"continue_final_message", kRefused, "is not supported: use input"},
    {"chat_template", kRefused, "is not supported: use input"},
    {"chat_template_kwargs", kRefused, "is not supported: use input"},
};

// OpenAI's embeddings, SGLang's EmbeddingRequest, and vLLM's EmbedRequestMixin.
constexpr KnownField kEmbeddings[] = {
    {"encoding_format", kHonoured},
    {"dimensions", kHonoured},
    {"normalize", kHonoured},
    {"embed_dtype", kRefused, "is not supported: embeddings are float32", R"(["float32"])"},
    {"endianness", kRefused, "is not supported: embeddings are little-endian",
     R"(["native", "little"])"},
    {"embed_overrides", kRefused, kNotSupported},
    {"embed_override_token_id", kRefused, kNotSupported},
    {"return_pooled_hidden_states", kRefused, kHidden},
};

constexpr KnownField kClassify[] = {{"activation", kHonoured}};

// SGLang's EmbeddingReqInput (managers/io_struct.py).
constexpr KnownField kEncode[] = {
    {"text", kHonoured},
    {"input_ids", kHonoured},
    {"dimensions", kHonoured},
    {"add_special_tokens", kHonoured},
    {"sampling_params", kHint},
    {"log_metrics", kHint},
    {"no_logs", kHint},
    {"external_trace_header", kHint},
    {"received_time", kHint},
    {"image_data", kRefused, kTextOnly},
    {"video_data", kRefused, kTextOnly},
    {"audio_data", kRefused, kTextOnly},
    {"modalities", kRefused, kTextOnly, R"([["text"]])"},
    {"input_embeds", kRefused, "is not supported: use text or input_ids"},
    {"is_cross_encoder_request", kRefused, "is not supported: use POST /v1/score"},
    {"lora_id", kRefused, kAdapters},
    {"background", kRefused, "is not supported: the answer comes on the request's connection"},
    {"http_worker_ipc", kRefused, kNotSupported},
    {"return_prompt_token_ids", kRefused, kNotSupported},
    {"return_pooled_hidden_states", kRefused, kHidden},
    {"multi_item_delimiter_indices", kRefused, kNotSupported},
    {"positional_embed_overrides", kRefused, kNotSupported},
};

// SGLang's ScoringRequest, and vLLM's ScoreRequest with its four pairs of field names.
constexpr KnownField kScore[] = {
    {"query", kHonoured},
    {"items", kHonoured},
    {"label_token_ids", kHonoured},
    {"apply_softmax", kHonoured},
    {"item_first", kHonoured},
    {"text_1", kHonoured},
    {"text_2", kHonoured},
    {"queries", kHonoured},
    {"documents", kHonoured},
    {"data_1", kHonoured},
    {"data_2", kHonoured},
    {"use_activation", kHonoured},
    {"activation", kHonoured},
    {"embed_overrides", kRefused, kNotSupported},
    {"return_pooled_hidden_states", kRefused, kHidden},
    {"chat_template", kRefused, kNotSupported},
    {"chat_template_kwargs", kRefused, kNotSupported},
    {"instruction", kRefused, "is not supported: put it into the query"},
};

// vLLM's RerankRequest, SGLang's V1RerankReqInput, Jina's and Cohere's rerank.
constexpr KnownField kRerank[] = {
    {"query", kHonoured},
    {"documents", kHonoured},
    {"top_n", kHonoured},
    {"return_documents", kHonoured},
    {"use_activation", kHonoured},
    {"activation", kHonoured},
    {"instruct", kRefused, "is not supported: put it into the query"},
    {"instruction", kRefused, "is not supported: put it into the query"},
    {"rank_fields", kRefused, "is not supported: a document has only a text", R"([["text"]])"},
    {"max_chunks_per_doc", kRefused, "is not supported: each document is one prompt", "[1]"},
    {"max_tokens_per_doc", kRefused, "is not supported: use truncate_prompt_tokens"},
    {"return_embeddings", kRefused, kNotSupported},
    {"chat_template", kRefused, kNotSupported},
    {"chat_template_kwargs", kRefused, kNotSupported},
};

template <typename... Lists>
std::vector<KnownField> Join(const Lists&... lists) {
  std::vector<KnownField> all;
  (all.insert(all.end(), std::begin(lists), std::end(lists)), ...);
  return all;
}

}  // namespace

std::span<const KnownField> KnownPoolingFields(RequestKind kind) {
  static const std::vector<KnownField> embeddings = Join(kCommon, kInput, kEmbeddings);
  static const std::vector<KnownField> classify = Join(kCommon, kInput, kClassify);
  static const std::vector<KnownField> encode = Join(kCommon, kEncode);
  static const std::vector<KnownField> score = Join(kCommon, kScore);
  static const std::vector<KnownField> rerank = Join(kCommon, kRerank);
  switch (kind) {
    case RequestKind::kEmbeddings:
      return embeddings;
    case RequestKind::kClassify:
      return classify;
    case RequestKind::kEncode:
      return encode;
    case RequestKind::kScore:
      return score;
    case RequestKind::kRerank:
      return rerank;
    default:
      return {};
  }
}

}  // namespace switchyard
