// JSON bodies of error responses, in one format for all endpoints.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

namespace switchyard::http {

inline constexpr char kJson[] = "application/json";

// HTTP status of an error of this kind: 400, 401, 404, 413, 429 (kBusy), 503 (kUnavailable) or 500.
int StatusOf(ErrorKind kind);

// {"error": {message, type, param, code}} for OpenAI clients. The same fields and "object": "error"
// are at the top level for SGLang clients; there, "code" is the status. `type` follows from the
// status. Empty `code` and `param` become null. Invalid UTF-8 in `message` is replaced. Absolute
// paths in `message` are kept; Responder::SendError hides them.
std::string ErrorBody(int status, std::string_view message, std::string_view code = {},
                      std::string_view param = {});

}  // namespace switchyard::http
