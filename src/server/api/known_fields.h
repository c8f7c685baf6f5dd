// Tables of all request fields of OpenAI, SGLang and vLLM: honoured, ignored or refused.
#pragma once

#include <mutex>
#include <set>
#include <span>
#include <string>

#include "server/api/json_body.h"

namespace switchyard {

enum class FieldUse {
  kHonoured,          // a parser reads the field
  kHint,              // ignored: labels, routing and logging, without effect on the output
  kRefused,           // an unsupported feature; null, false and empty values are accepted
  kRefusedEvenEmpty,  // like kRefused, but empty objects and strings are refused too
};

struct KnownField {
  const char* name;
  FieldUse use;
  const char* why = "";  // the error message is "<field> <why>"
  // JSON list of values that a refused field may have, in addition to null, false and empty ones.
  const char* neutral = "";
};

enum class RequestKind {
  kChat,
  kCompletion,
  kGenerate,
  kSamplingParams,
  kTokenize,
  kDetokenize,
  kParseFunctionCall,
  kSeparateReasoning,
  kMessages,
  kResponses,
  kAbort,
  kStartProfile,
  kScaleElasticEp,
  // Other control requests, and the sessions of /generate (known_control_fields.cc).
  kPauseGeneration,
  kContinueGeneration,
  kSlowDown,
  kSetInternalState,
  kConfigureLogging,
  kOpenSession,
  kCloseSession,
  kSessionParams,
  kUpdateWeights,
  kUpdateFromTensor,
  kUpdateWeightVersion,
  kMemoryTags,
  kGetWeights,
  kCheckWeights,
  // Requests to embedding models and classifiers.
  kEmbeddings,
  kEncode,
  kClassify,
  kScore,
  kRerank,  // the last one
};

// All fields of one kind of request, unordered, without duplicates.
std::span<const KnownField> KnownFields(RequestKind kind);

// Whether the server refuses `value` of the field.
bool IsRefused(const KnownField& field, const Json& value);

// Records which unknown fields have been logged. Thread-safe.
class UnknownFields {
 public:
  // Logs each field name once, up to 256 names in total. Returns true if it logged `name` now.
  bool Log(const std::string& name);

 private:
  std::mutex mutex_;
  std::set<std::string> seen_;
};

// Throws RequestError for a refused field, unless its value disables the feature: null, false, "",
// [], {}, objects of nulls, or a value of KnownField::neutral. Logs unknown fields once and ignores
// them.
void CheckFields(const Fields& fields, RequestKind kind, UnknownFields& unknown);
// For control requests: like CheckFields, but throws RequestError for an unknown field; the error
// lists the known fields.
void RefuseUnknownFields(const Json& body, RequestKind kind);

// Fields of requests to the APIs for agents: Messages and Responses. Internal to known_fields.cc.

// `kind`: kMessages or kResponses.
std::span<const KnownField> KnownAgentFields(RequestKind kind);

// Fields of control requests. Internal to known_fields.cc.

// Empty if `kind` is no control request of this file.
std::span<const KnownField> KnownControlFields(RequestKind kind);

// Fields of requests to embedding models and classifiers. Internal to known_fields.cc.

// Empty if `kind` is no request for pooled vectors.
std::span<const KnownField> KnownPoolingFields(RequestKind kind);

}  // namespace switchyard
