#include "server/openapi/schemas.h"

namespace switchyard::openapi {
namespace {

constexpr char kBool[] = R"({"type":"boolean"})";
constexpr char kTrue[] = R"({"type":"boolean","default":true})";
constexpr char kIds[] = R"({"type":"array","items":{"$ref":"#/components/schemas/TokenId"}})";
// A text or a list of token ids, or a list of these.
constexpr char kPrompts[] = R"({"anyOf":[{"type":"string"},{"type":"array"}]})";
// Texts, or objects with a text.
constexpr char kDocuments[] =
    R"({"type":"array","items":{"anyOf":[{"type":"string"},)"
    R"({"type":"object","required":["text"],"properties":{"text":{"type":"string"}}}]}})";
constexpr char kDimensions[] = R"({"type":"integer","minimum":1,"maximum":2147483647})";
constexpr char kTruncate[] = R"({"anyOf":[{"const":-1},{"type":"integer","minimum":1}],)"
                             R"("description":"-1: the context length"})";
constexpr char kSide[] = R"({"enum":["left","right"],"default":"left"})";

constexpr FieldSchema kEmbeddings[] = {
    {"input", kPrompts},
    {"encoding_format", R"({"enum":["float","base64"],"default":"float"})"},
    {"dimensions", kDimensions},
    {"normalize", kBool},
    {"use_activation", kBool},
    {"add_special_tokens", kTrue},
    {"truncate_prompt_tokens", kTruncate},
    {"truncation_side", kSide},
};

constexpr FieldSchema kEncode[] = {
    {"text", kPrompts},
    {"input_ids", R"({"type":"array"})"},
    {"dimensions", kDimensions},
    {"add_special_tokens", kTrue},
    {"truncate_prompt_tokens", kTruncate},
    {"truncation_side", kSide},
};

constexpr FieldSchema kClassify[] = {
    {"input", kPrompts},
    {"activation", kBool},
    {"use_activation", kBool},
    {"add_special_tokens", kTrue},
    {"truncate_prompt_tokens", kTruncate},
    {"truncation_side", kSide},
};

constexpr FieldSchema kScore[] = {
    {"query", kPrompts},
    {"items", kPrompts},
    {"label_token_ids", kIds},
    {"apply_softmax", R"({"type":"boolean","default":false})"},
    {"item_first", R"({"type":"boolean","default":false})"},
    {"text_1", kPrompts},
    {"text_2", kPrompts},
    {"queries", kPrompts},
    {"documents", kPrompts},
    {"data_1", kPrompts},
    {"data_2", kPrompts},
    {"activation", kBool},
    {"use_activation", kBool},
    {"truncate_prompt_tokens", kTruncate},
    {"truncation_side", kSide},
};

constexpr FieldSchema kRerank[] = {
    {"query", R"({"type":"string"})"},
    {"documents", kDocuments},
    {"top_n", R"({"type":"integer","minimum":0,"maximum":2147483647})"},
    {"return_documents", kTrue},
    {"activation", kBool},
    {"use_activation", kBool},
    {"truncate_prompt_tokens", kTruncate},
    {"truncation_side", kSide},
};

constexpr NamedSchema kSchemas[] = {
    {"PromptUsage", R"({
      "type": "object", "required": ["prompt_tokens", "total_tokens"],
      "properties": {
        "prompt_tokens": {"type": "integer"},
        "completion_tokens": {"const": 0},
        "total_tokens": {"type": "integer"},
        "prompt_tokens_details": {"type": "object"}
      }
    })"},
    {"Embeddings", R"({
      "type": "object", "required": ["object", "data", "usage"],
      "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {
          "type": "object", "required": ["object", "index", "embedding"],
          "properties": {
            "object": {"const": "embedding"},
            "index": {"type": "integer"},
            "embedding": {
              "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]
            }
          }
        }},
        "usage": {"$ref": "#/components/schemas/PromptUsage"}
      }
    })"},
    {"EncodeOutput", R"({
      "type": "object", "required": ["embedding", "meta_info"],
      "properties": {
        "embedding": {"type": "array", "items": {"type": "number"}},
        "meta_info": {"type": "object"}
      }
    })"},
    {"EncodeResponse", R"({
      "anyOf": [
        {"$ref": "#/components/schemas/EncodeOutput"},
        {"type": "array", "items": {"$ref": "#/components/schemas/EncodeOutput"}}
      ]
    })"},
    {"ClassifyResponse", R"({
      "anyOf": [
        {
          "type": "object", "required": ["object", "data", "usage"],
          "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {
              "type": "object", "required": ["index", "label", "probs", "num_classes"],
              "properties": {
                "index": {"type": "integer"},
                "probs": {"type": "array", "items": {"type": "number"}},
                "num_classes": {"type": "integer"}
              }
            }},
            "usage": {"$ref": "#/components/schemas/PromptUsage"}
          }
        },
        {"$ref": "#/components/schemas/EncodeResponse"}
      ]
    })"},
    {"ScoreResponse", R"({
      "type": "object", "required": ["usage"],
      "properties": {
        "scores": {"type": "array"},
        "data": {"type": "array", "items": {
          "type": "object", "required": ["index", "object", "score"],
          "properties": {
            "index": {"type": "integer"},
            "object": {"const": "score"},
            "score": {"type": "number"}
          }
        }},
        "usage": {"$ref": "#/components/schemas/PromptUsage"}
      }
    })"},
    {"RerankResponse", R"({
      "type": "object", "required": ["results", "usage"],
      "properties": {
        "results": {"type": "array", "items": {
          "type": "object", "required": ["index", "relevance_score"],
          "properties": {
            "index": {"type": "integer"},
            "relevance_score": {"type": "number"},
            "document": {}
          }
        }},
        "usage": {"$ref": "#/components/schemas/PromptUsage"}
      }
    })"},
};

}  // namespace

std::span<const FieldSchema> PoolingFieldSchemas(RequestKind kind) {
  switch (kind) {
    case RequestKind::kEmbeddings:
      return kEmbeddings;
    case RequestKind::kEncode:
      return kEncode;
    case RequestKind::kClassify:
      return kClassify;
    case RequestKind::kScore:
      return kScore;
    case RequestKind::kRerank:
      return kRerank;
    default:
      return {};
  }
}

std::span<const NamedSchema> PoolingSchemas() { return kSchemas; }

}  // namespace switchyard::openapi
