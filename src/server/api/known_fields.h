// Every field of the requests of OpenAI, SGLang and vLLM, and what this server does with it.
#pragma once

#include <mutex>
#include <set>
#include <span>
#include <string>

#include "server/api/json_body.h"

namespace switchyard {

enum class FieldUse {
  kHonoured,          // a parser reads it
  kHint,              // labels, routing and logging: it cannot change an answer
  kRefused,           // asks for what this server does not have; empty values ask for nothing
  kRefusedEvenEmpty,  // the same, but an empty object or string asks for it too
};

struct KnownField {
  const char* name;
  FieldUse use;
  const char* why = "";      // of a refusal: "<field> <why>"
  const char* neutral = "";  // JSON list of further values that ask for nothing
};

enum class RequestKind { kChat, kCompletion, kGenerate, kSamplingParams, kTokenize, kDetokenize };

// The fields of one kind, in no order, each once.
std::span<const KnownField> KnownFields(RequestKind kind);

// Remembers which unknown fields have been logged. Any thread.
class UnknownFields {
 public:
  // Logs the field the first time that its name comes; after some hundreds of names, no more.
  // Returns whether it did.
  bool Log(const std::string& name);

 private:
  std::mutex mutex_;
  std::set<std::string> seen_;
};

// RequestError that names a field which is refused and asks for something. Null, false, "", [], {}
// and objects of nulls ask for nothing, and so do the values that the table lists.
void CheckFields(const Fields& fields, RequestKind kind, UnknownFields& unknown);

}  // namespace switchyard
