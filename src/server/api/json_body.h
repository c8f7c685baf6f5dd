// A request's JSON, read field by field with errors that a client can act on.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "server/api/request_error.h"
#include "server/http/http_server.h"
#include "server/http/memory_budget.h"

namespace switchyard {

using Json = nlohmann::ordered_json;

// The body as a JSON object; Error kInvalid where it is none. Nesting is bounded. What the object
// takes, and what tokenizing its texts will, is counted in `memory` while it is built: the Error of
// MemoryCharge::Require.
Json ParseBody(std::string_view body, http::MemoryCharge* memory = nullptr);
Json ParseBody(const http::Request& request);

// Bytes of a JSON answer; text that is no UTF-8 is replaced, never refused.
std::string Dump(const Json& json);

// Typed access to an object's fields. An absent or null field is the default. Another type is a
// RequestError that names the field, `prefix` before it ("sampling_params.top_k"). What pydantic
// takes for a boolean or a number is taken here too: "true", 1, "0.5", 16.0.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = {})
      : object_(object), prefix_(std::move(prefix)) {}

  bool Has(const char* key) const { return Find(key) != nullptr; }
  const Json* Find(const char* key) const;  // null where absent or JSON null

  bool Bool(const char* key, bool otherwise) const;
  int64_t Int(const char* key, int64_t otherwise, int64_t least, int64_t most) const;
  int32_t Int32(const char* key, int32_t otherwise) const;
  double Number(const char* key, double otherwise) const;
  std::optional<uint64_t> Seed(const char* key) const;  // any integer, negative ones too
  std::string String(const char* key, std::string otherwise) const;
  std::vector<std::string> Strings(const char* key) const;  // one string or a list of them
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

}  // namespace switchyard
