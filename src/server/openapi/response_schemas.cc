#include "server/openapi/schemas.h"

namespace switchyard::openapi {
namespace {

constexpr NamedSchema kResponses[] = {
    {"Error", R"({
      "type": "object",
      "description": "members of OpenAI's errors (in `error`) and of SGLang's",
      "required": ["object", "message", "type", "param", "code", "error"],
      "properties": {
        "object": {"const": "error"},
        "message": {"type": "string"},
        "type": {"type": "string"},
        "param": {"type": ["string", "null"], "description": "the field at fault"},
        "code": {"type": "integer", "description": "the HTTP status"},
        "error": {
          "type": "object",
          "required": ["message", "type", "param", "code"],
          "properties": {
            "message": {"type": "string"},
            "type": {"type": "string"},
            "param": {"type": ["string", "null"]},
            "code": {"type": ["string", "null"]}
          }
        }
      }
    })"},
    {"Empty", R"({"type": "object", "maxProperties": 0})"},
    {"Null", R"({"type": "null"})"},
    {"SessionId", R"({"type": "string", "minLength": 1})"},
    {"UpdatedGroups", R"({
      "type": "array", "description": "one entry for each attention group",
      "items": {"const": true}
    })"},
    {"PausedGeneration", R"({
      "type": "object", "required": ["message", "status"],
      "properties": {
        "message": {"type": "string"},
        "status": {"const": "ok"},
        "retracted_requests": {"type": "integer"},
        "aborted_requests": {"type": "integer"}
      }
    })"},
    {"GroupLoads", R"({
      "type": "array", "description": "one entry for each attention group",
      "items": {
        "type": "object",
        "required": ["dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens",
                     "num_pending_tokens", "ts_tic"],
        "properties": {
          "dp_rank": {"type": "integer"},
          "num_reqs": {"type": "integer"},
          "num_waiting_reqs": {"type": "integer"},
          "num_tokens": {"type": "integer"},
          "num_pending_tokens": {"type": "integer"},
          "ts_tic": {"type": "number"}
        }
      }
    })"},
    {"Document", R"({"type": "object", "required": ["openapi", "info", "paths"]})"},
    {"Health", R"({
      "type": "object", "required": ["status"],
      "properties": {
        "status": {"const": "ok"}, "is_scaling_elastic_ep": {"const": true},
        "spare_ranks": {
          "type": "object", "description": "with --spare-ranks",
          "required": ["wanted", "ready", "loading", "used", "failed"],
          "properties": {
            "wanted": {"type": "integer"}, "ready": {"type": "integer"},
            "loading": {"type": "integer"}, "used": {"type": "integer"},
            "failed": {"type": "integer"}
          }
        }
      }
    })"},
    {"ScaledElasticEp", R"({
      "type": "object",
      "required": ["message", "changed", "old_tp_size", "old_ep_size", "old_dp_size", "new_tp_size",
                   "new_ep_size", "new_dp_size", "loaded_ranks", "loaded_beside_the_old_ranks",
                   "outputs_stay_equal", "pause_seconds", "seconds", "epoch"],
      "properties": {
        "message": {"type": "string"},
        "changed": {"type": "boolean"},
        "old_tp_size": {"type": "integer"},
        "old_ep_size": {"type": "integer"},
        "old_dp_size": {"type": "integer"},
        "new_tp_size": {"type": "integer"},
        "new_ep_size": {"type": "integer"},
        "new_dp_size": {"type": "integer"},
        "loaded_ranks": {"type": "array", "items": {"type": "integer"}},
        "loaded_beside_the_old_ranks": {"type": "boolean"},
        "outputs_stay_equal": {"type": "boolean"},
        "pause_seconds": {"type": "array", "items": {"type": "number"}},
        "seconds": {"type": "number"},
        "epoch": {"type": "integer"}
      }
    })"},
    {"ElasticEpState", R"({
      "type": "object",
      "required": ["is_scaling_elastic_ep", "tp_size", "ep_size", "dp_size"],
      "properties": {
        "is_scaling_elastic_ep": {"type": "boolean"},
        "tp_size": {"type": "integer"},
        "ep_size": {"type": "integer"},
        "dp_size": {"type": "integer"},
        "pending_ep_size": {"type": ["integer", "null"]},
        "last_error": {"type": ["string", "null"]}
      }
    })"},
    {"Version", R"({
      "type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}
    })"},
    {"WeightVersion", R"({
      "type": "object", "required": ["weight_version"],
      "properties": {"weight_version": {"type": "string"}}
    })"},
    {"WeightVersionResult", R"({
      "type": "object", "required": ["success", "message", "new_version"],
      "properties": {"success": {"const": true}, "message": {"type": "string"},
                     "new_version": {"type": "string"}}
    })"},
    {"CheckedWeights", R"({
      "type": "object", "required": ["success", "message"],
      "properties": {
        "success": {"type": "boolean"},
        "message": {"type": "string"},
        "ranks": {"type": "array", "items": {"type": "object"}}
      }
    })"},
    {"WeightsResult", R"({
      "type": "object", "required": ["success", "message", "num_paused_requests"],
      "properties": {
        "success": {"type": "boolean"},
        "message": {"type": "string"},
        "num_paused_requests": {"type": "integer"},
        "seconds": {"type": "number"}
      }
    })"},
    {"WeightValues", R"({
      "description": "a number, or nested lists",
      "anyOf": [{"type": "number"}, {"type": "array"}]
    })"},
    {"ModelInfo", R"({
      "type": "object",
      "required": ["model_path", "tokenizer_path", "served_model_name", "is_generation",
                   "weight_version", "architecture", "max_model_len", "vocab_size"],
      "properties": {
        "model_path": {"type": "string"},
        "tokenizer_path": {"type": "string"},
        "served_model_name": {"type": "string"},
        "is_generation": {"type": "boolean"},
        "weight_version": {"type": "string"},
        "architecture": {"type": "string"},
        "max_model_len": {"type": "integer"},
        "vocab_size": {"type": "integer"},
        "has_image_understanding": {"type": "boolean"},
        "has_audio_understanding": {"type": "boolean"}
      }
    })"},
    {"ServerInfo", R"({
      "type": "object",
      "required": ["served_model_name", "version", "context_length", "internal_states"],
      "properties": {
        "served_model_name": {"type": "string"},
        "version": {"type": "string"},
        "context_length": {"type": "integer"},
        "tool_call_parser": {"type": ["string", "null"]},
        "reasoning_parser": {"type": ["string", "null"]},
        "internal_states": {
          "type": "array",
          "description": "one entry for each attention group",
          "items": {"type": "object", "additionalProperties": {"type": "integer"}}
        }
      }
    })"},
    {"Model", R"({
      "type": "object",
      "required": ["id", "object", "created", "owned_by", "root", "parent", "max_model_len"],
      "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
        "root": {"type": "string"},
        "parent": {"type": "null"},
        "max_model_len": {"type": "integer"}
      }
    })"},
    {"ModelList", R"({
      "type": "object",
      "required": ["object", "data"],
      "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}
      }
    })"},
    {"TokenCount", R"({
      "type": "object", "required": ["input_tokens"],
      "properties": {"input_tokens": {"type": "integer", "minimum": 0}}
    })"},
    {"TokenizeResponse", R"({
      "type": "object",
      "description": "with a list of prompts, the members are lists of values",
      "required": ["tokens", "count", "max_model_len"],
      "properties": {
        "tokens": {"type": "array"},
        "count": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]},
        "max_model_len": {"type": "integer"},
        "token_strs": {"type": "array"}
      }
    })"},
    {"DetokenizeResponse", R"({
      "type": "object",
      "required": ["text", "prompt"],
      "properties": {
        "text": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "prompt": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
      }
    })"},
    {"ParsedCalls", R"({
      "type": "object",
      "required": ["normal_text", "calls"],
      "properties": {
        "normal_text": {"type": "string"},
        "calls": {
          "type": "array",
          "items": {
            "type": "object",
            "required": ["tool_index", "name", "parameters"],
            "properties": {
              "tool_index": {"type": "integer"},
              "name": {"type": "string"},
              "parameters": {"type": "string"}
            }
          }
        }
      }
    })"},
    {"SeparatedReasoning", R"({
      "type": "object",
      "required": ["reasoning_text", "text"],
      "properties": {
        "reasoning_text": {"type": "string"},
        "text": {"type": "string"},
        "blocks": {
          "type": "array",
          "items": {
            "type": "object",
            "required": ["type", "text"],
            "properties": {"type": {"enum": ["reasoning", "text"]}, "text": {"type": "string"}}
          }
        }
      }
    })"},
    {"StartedProfile", R"({
      "type": "object",
      "required": ["message", "output_dir", "profile_id", "activities"],
      "properties": {
        "message": {"type": "string"},
        "output_dir": {"type": "string"},
        "profile_id": {"type": "string"},
        "activities": {"type": "array", "items": {"enum": ["CPU", "GPU"]}}
      }
    })"},
    {"StoppedProfile", R"({
      "type": "object",
      "required": ["message", "files", "events", "dropped_events"],
      "properties": {
        "message": {"type": "string"},
        "files": {"type": "array", "items": {"type": "string"}},
        "events": {"type": "integer"},
        "dropped_events": {"type": "integer"}
      }
    })"},
    {"ExpertDump", R"({
      "type": "object",
      "required": ["file", "mode", "shape", "logical_count"],
      "properties": {
        "file": {"type": "string"},
        "mode": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "logical_count": {"type": "array"}
      }
    })"},
    {"ExpertLoad", R"({
      "type": "object",
      "required": ["forward_passes", "recording", "rank_count", "balancedness", "layers"],
      "properties": {
        "forward_passes": {"type": "integer"},
        "recording": {"type": "boolean"},
        "rank_count": {"type": "array", "items": {"type": "integer"}},
        "balancedness": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "stage_seconds": {"type": "array", "items": {"type": "object"}},
        "timed_passes": {"type": "integer"},
        "layers": {"type": "array", "items": {"type": "object"}}
      }
    })"},
    {"EplbStatus", R"({
      "type": "object",
      "required": ["state", "forward_passes", "rebalance", "options"],
      "properties": {
        "state": {"type": "string"},
        "forward_passes": {"type": "integer"},
        "rebalance": {"type": "object"},
        "placement": {"type": ["object", "null"]},
        "options": {"type": "object"}
      }
    })"},
    {"EplbRebalance", R"({
      "type": "object",
      "required": ["accepted", "plans"],
      "properties": {"accepted": {"const": true}, "plans": {"type": "integer"}}
    })"},
    {"GenerateResponse", R"({
      "description": "a list for several prompts or copies",
      "anyOf": [
        {"$ref": "#/components/schemas/GenerateOutput"},
        {"type": "array", "items": {"$ref": "#/components/schemas/GenerateOutput"}}
      ]
    })"},
    {"GenerateOutput", R"({
      "type": "object",
      "required": ["text", "output_ids", "meta_info"],
      "properties": {
        "text": {"type": "string"},
        "output_ids": {"type": "array", "items": {"type": "integer"}},
        "index": {"type": "integer"},
        "meta_info": {
          "type": "object",
          "required": ["id", "finish_reason", "prompt_tokens", "completion_tokens",
                       "cached_tokens", "e2e_latency"],
          "properties": {
            "id": {"type": "string"},
            "finish_reason": {
              "type": ["object", "null"],
              "required": ["type"],
              "properties": {"type": {"enum": ["stop", "length", "abort"]}}
            },
            "prompt_tokens": {"type": "integer"},
            "completion_tokens": {"type": "integer"},
            "cached_tokens": {"type": "integer"},
            "cached_tokens_details": {"type": ["object", "null"]},
            "weight_version": {"type": "string"},
            "e2e_latency": {"type": "number"},
            "spec_verify_ct": {"type": "integer"},
            "spec_draft_token_num": {"type": "integer"},
            "spec_accept_token_num": {"type": "integer"},
            "spec_accept_rate": {"type": "number"},
            "spec_accept_length": {"type": "number"},
            "jump_forward_ct": {"type": "integer"},
            "jump_forward_draft_token_num": {"type": "integer"},
            "jump_forward_accept_token_num": {"type": "integer"},
            "input_token_logprobs": {"type": "array"},
            "output_token_logprobs": {"type": "array"},
            "prompt_token_ids": {"type": "array", "items": {"type": "integer"}},
            "routed_experts": {"type": "string", "contentEncoding": "base64"}
          }
        }
      }
    })"},
};

}  // namespace

std::span<const NamedSchema> ResponseSchemas() { return kResponses; }

}  // namespace switchyard::openapi
