// Errors of requests, with the members of OpenAI's error object.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "server/http/http_server.h"
#include "server/http/memory_budget.h"
#include "text/jinja/exact_json.h"

namespace switchyard {

// An Error with "param" and "code" of OpenAI's error object: the client's field, and a
// machine-readable error code. Both may be empty.
class RequestError : public Error {
 public:
  RequestError(ErrorKind kind, std::string param, const std::string& message, std::string code = {})
      : Error(kind, message), param_(std::move(param)), code_(std::move(code)) {}
  // `error` with a field. Its hint is kept.
  RequestError(const Error& error, std::string param, std::string code)
      : Error(error), param_(std::move(param)), code_(std::move(code)) {}

  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  std::string param_, code_;
};

// Renames the field of an error. If the field begins with `name`, that part is replaced by
// `client`, in the field and in the message. For example, "response_format.type" becomes
// "text.format.type".
inline RequestError Renamed(const RequestError& error, const std::string& name,
                            const std::string& client) {
  if (!error.param().starts_with(name)) return error;
  std::string message = error.what();
  for (size_t at = 0; (at = message.find(name, at)) != std::string::npos; at += client.size())
    message.replace(at, name.size(), client);
  return {error.kind(), client + error.param().substr(name.size()), message, error.code()};
}

// Example: throw InvalidField("n", "n is {}, want 1 to {}", n, most);
template <typename... Args>
RequestError InvalidField(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kInvalid, std::move(param), fmt::format(format, std::forward<Args>(args)...)};
}

// Parses JSON request bodies, with typed field access and errors that name the field.

using Json = nlohmann::ordered_json;

// Parses the body; throws Error kInvalid unless it is a JSON object. Nesting depth is limited.
// Before parsing, charges `memory` with an upper bound of the bytes for the object and for
// tokenizing its strings. MemoryCharge::Require throws if they exceed the budget.
Json ParseBody(std::string_view body, http::MemoryCharge* memory = nullptr);
Json ParseBody(const http::Request& request);

// Serializes a JSON response. Invalid UTF-8 is replaced by U+FFFD, not an error.
std::string Dump(const Json& json);
// Like Dump, but prints numbers of jinja::ParseExactJson, such as integers beyond 64 bits, with
// their exact digits.
std::string DumpExact(const Json& json);

// Typed access to an object's fields. An absent or null field gives the default. A wrong type
// throws RequestError with the field's name after `prefix`, such as "sampling_params.top_k".
// Booleans and numbers may have the forms that pydantic's lax mode accepts: "true", 1, "0.5", 16.0.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  bool Has(const char* key) const { return Find(key) != nullptr; }
  const Json* Find(const char* key) const;  // nullptr if absent or JSON null

  bool Bool(const char* key, bool otherwise) const;
  int64_t Int(const char* key, int64_t otherwise, int64_t least, int64_t most) const;
  int32_t Int32(const char* key, int32_t otherwise) const;
  double Number(const char* key, double otherwise) const;
  // Any 64-bit integer, including negative ones.
  std::optional<uint64_t> Seed(const char* key) const;
  std::string String(const char* key, std::string otherwise) const;
  std::vector<std::string> Strings(const char* key) const;  // a string or a list of strings
  std::vector<int32_t> Ids(const char* key) const;          // a list of integers
  // An object {"token id": bias}.
  std::vector<std::pair<int32_t, float>> LogitBias(const char* key) const;

  std::string Name(const char* key) const { return prefix_ + key; }
  const Json& object() const { return object_; }

 private:
  const Json& object_;
  std::string prefix_;
};

std::vector<int32_t> ToIds(const Json& list, const std::string& name);

// Limits of JSON text from clients.

// Depth: messages and tool schemas need less. Recursive code that walks an object of this depth
// does not overflow the stack. Keys: ordered_json looks up keys by linear search, so parsing takes
// quadratic time in the number of keys.
inline constexpr jinja::JsonLimits kBodyLimits{.depth = 128, .keys = 4096};

}  // namespace switchyard
