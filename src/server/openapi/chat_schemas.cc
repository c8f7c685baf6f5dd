#include "server/openapi/schemas.h"

namespace switchyard::openapi {
namespace {

constexpr NamedSchema kChat[] = {
    {"Message", R"({
      "type": "object",
      "required": ["role"],
      "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function",
                          "ipython", "observation"]},
        "content": {
          "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"$ref": "#/components/schemas/TextPart"}},
            {"type": "null"}
          ]
        },
        "reasoning_content": {"type": ["string", "null"]},
        "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}},
        "tool_call_id": {"type": "string"}
      }
    })"},
    {"TextPart", R"({
      "type": "object",
      "required": ["type", "text"],
      "properties": {"type": {"const": "text"}, "text": {"type": "string"}}
    })"},
    {"Tool", R"({
      "type": "object",
      "required": ["function"],
      "properties": {
        "type": {"const": "function"},
        "function": {
          "type": "object",
          "required": ["name"],
          "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 256},
            "description": {"type": "string"},
            "parameters": {"type": "object", "description": "a JSON schema"},
            "strict": {"type": "boolean", "description": "whether calls of this function match its parameters"}
          }
        }
      }
    })"},
    {"ToolCall", R"({
      "type": "object",
      "required": ["id", "type", "function"],
      "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
          "type": "object",
          "required": ["name", "arguments"],
          "properties": {
            "name": {"type": "string"},
            "arguments": {"type": "string", "description": "a JSON object"}
          }
        }
      }
    })"},
    {"Usage", R"({
      "type": "object",
      "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"],
      "properties": {
        "prompt_tokens": {"type": "integer"},
        "completion_tokens": {"type": "integer"},
        "total_tokens": {"type": "integer"},
        "prompt_tokens_details": {
          "type": "object",
          "required": ["cached_tokens"],
          "properties": {"cached_tokens": {"type": "integer"}}
        },
        "completion_tokens_details": {
          "type": "object",
          "properties": {
            "reasoning_tokens": {"type": "integer"},
            "accepted_prediction_tokens": {
              "type": "integer", "description": "accepted drafts of speculative decoding"
            },
            "rejected_prediction_tokens": {"type": "integer"}
          }
        },
        "reasoning_tokens": {"type": "integer"}
      }
    })"},
    {"FinishReason", R"({"enum": ["stop", "tool_calls", "length", "abort", null]})"},
    {"MatchedStop", R"({
      "type": ["string", "integer", "null"], "description": "the stop string or token id"
    })"},
    {"ChatLogprobs", R"({
      "type": ["object", "null"],
      "required": ["content"],
      "properties": {
        "content": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}}
      }
    })"},
    {"TokenLogprob", R"({
      "type": "object",
      "required": ["token", "logprob", "bytes"],
      "properties": {
        "token": {"type": "string"},
        "logprob": {"type": ["number", "null"]},
        "bytes": {"type": "array", "items": {"type": "integer"}},
        "top_logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}}
      }
    })"},
    {"ChatCompletion", R"({
      "type": "object",
      "required": ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"],
      "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "system_fingerprint": {"type": "string"},
        "choices": {"type": "array", "items": {"$ref": "#/components/schemas/ChatChoice"}},
        "usage": {"$ref": "#/components/schemas/Usage"},
        "prompt_token_ids": {"type": "array", "items": {"type": "integer"}},
        "prompt_text": {"type": "string"},
        "prompt_logprobs": {"type": ["array", "null"]},
        "sglext": {"type": "object"}
      }
    })"},
    {"ChatChoice", R"({
      "type": "object",
      "required": ["index", "message", "logprobs", "finish_reason", "matched_stop"],
      "properties": {
        "index": {"type": "integer"},
        "message": {
          "type": "object",
          "required": ["role", "content"],
          "properties": {
            "role": {"const": "assistant"},
            "content": {"type": ["string", "null"]},
            "reasoning_content": {"type": ["string", "null"]},
            "reasoning": {"type": ["string", "null"]},
            "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}}
          }
        },
        "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
        "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
        "matched_stop": {"$ref": "#/components/schemas/MatchedStop"},
        "token_ids": {"type": "array", "items": {"type": "integer"}}
      }
    })"},
    {"ChatCompletionChunk", R"({
      "type": "object",
      "required": ["id", "object", "created", "model", "choices"],
      "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion.chunk"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {
          "type": "array",
          "items": {
            "type": "object",
            "required": ["index", "delta", "finish_reason"],
            "properties": {
              "index": {"type": "integer"},
              "delta": {"type": "object"},
              "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
              "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
              "matched_stop": {"$ref": "#/components/schemas/MatchedStop"}
            }
          }
        },
        "usage": {"anyOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]}
      }
    })"},
    {"Completion", R"({
      "type": "object",
      "required": ["id", "object", "created", "model", "choices"],
      "properties": {
        "id": {"type": "string"},
        "object": {"const": "text_completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "system_fingerprint": {"type": "string"},
        "choices": {
          "type": "array",
          "items": {
            "type": "object",
            "required": ["index", "text", "logprobs", "finish_reason", "matched_stop"],
            "properties": {
              "index": {"type": "integer"},
              "text": {"type": "string"},
              "logprobs": {
                "type": ["object", "null"],
                "required": ["text_offset", "token_logprobs", "tokens", "top_logprobs"],
                "properties": {
                  "text_offset": {"type": "array", "items": {"type": "integer"}},
                  "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
                  "tokens": {"type": "array", "items": {"type": "string"}},
                  "top_logprobs": {"type": "array", "items": {"type": ["object", "null"]}}
                }
              },
              "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
              "matched_stop": {"$ref": "#/components/schemas/MatchedStop"},
              "token_ids": {"type": "array", "items": {"type": "integer"}},
              "prompt_token_ids": {"type": "array", "items": {"type": "integer"}},
              "prompt_logprobs": {"type": ["array", "null"]}
            }
          }
        },
        "usage": {"anyOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]},
        "sglext": {"type": "object"}
      }
    })"},
    {"Response", R"({
      "type": "object",
      "required": ["id", "object", "created_at", "status", "error", "incomplete_details", "model",
                   "output", "usage"],
      "properties": {
        "id": {"type": "string"},
        "object": {"const": "response"},
        "created_at": {"type": "integer"},
        "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
        "error": {"type": ["object", "null"]},
        "incomplete_details": {"type": ["object", "null"]},
        "model": {"type": "string"},
        "output": {
          "type": "array",
          "items": {
            "type": "object",
            "required": ["id", "type", "status"],
            "properties": {
              "id": {"type": "string"},
              "type": {"enum": ["message", "reasoning", "function_call"]},
              "status": {"enum": ["in_progress", "completed", "incomplete"]}
            }
          }
        },
        "usage": {
          "type": ["object", "null"],
          "required": ["input_tokens", "output_tokens", "total_tokens"],
          "properties": {
            "input_tokens": {"type": "integer"},
            "output_tokens": {"type": "integer"},
            "total_tokens": {"type": "integer"}
          }
        }
      }
    })"},
    {"ResponseEvent", R"({
      "type": "object",
      "required": ["type", "sequence_number"],
      "properties": {"type": {"type": "string"}, "sequence_number": {"type": "integer"}}
    })"},
    {"ResponseInput", R"({
      "type": "object",
      "required": ["object", "data"],
      "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {"type": "object"}}
      }
    })"},
    {"DeletedResponse", R"({
      "type": "object",
      "required": ["id", "object", "deleted"],
      "properties": {
        "id": {"type": "string"}, "object": {"const": "response"}, "deleted": {"const": true}
      }
    })"},
    {"AnthropicMessage", R"({
      "type": "object",
      "required": ["role", "content"],
      "properties": {
        "role": {"enum": ["user", "assistant", "system"]},
        "content": {
          "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"$ref": "#/components/schemas/AnthropicBlock"}}
          ]
        }
      }
    })"},
    {"AnthropicBlock", R"({
      "type": "object",
      "required": ["type"],
      "properties": {
        "type": {"enum": ["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]},
        "text": {"type": "string"},
        "thinking": {"type": "string"},
        "id": {"type": "string"},
        "name": {"type": "string"},
        "input": {"type": "object"},
        "tool_use_id": {"type": "string"}
      }
    })"},
    {"AnthropicTool", R"({
      "type": "object",
      "required": ["name"],
      "properties": {
        "type": {"const": "custom"},
        "name": {"type": "string", "minLength": 1, "maxLength": 256},
        "description": {"type": "string"},
        "input_schema": {"type": "object", "description": "a JSON schema"}
      }
    })"},
    {"AnthropicResponse", R"({
      "type": "object",
      "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence",
                   "usage"],
      "properties": {
        "id": {"type": "string"},
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": {"type": "string"},
        "content": {
          "type": "array",
          "items": {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["text", "thinking", "tool_use"]}}
          }
        },
        "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": {
          "type": "object",
          "required": ["input_tokens", "output_tokens", "cache_read_input_tokens"],
          "additionalProperties": {"type": "integer"}
        }
      }
    })"},
    {"AnthropicEvent", R"({
      "type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}
    })"},
};

}  // namespace

std::span<const NamedSchema> ChatSchemas() { return kChat; }

}  // namespace switchyard::openapi
