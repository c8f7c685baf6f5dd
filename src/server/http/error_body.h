// JSON bodies of error responses, one shape for every endpoint.
#pragma once

#include <string>
#include <string_view>

#include "core/error.h"

namespace switchyard::http {

inline constexpr char kJson[] = "application/json";

// HTTP status of an error that a request ran into: 400, 401, 404, 413, 429 (kBusy), 503
// (kUnavailable) or 500.
int StatusOf(ErrorKind kind);

// {"error": {message, type, param, code}} as OpenAI's clients read it, with the same fields and
// "object": "error" at the top level for clients of SGLang, where "code" is the status. `type`
// follows from the status; empty `code` and `param` become null. Bytes of `message` that are no
// UTF-8 are replaced.
std::string ErrorBody(int status, std::string_view message, std::string_view code = {},
                      std::string_view param = {});

}  // namespace switchyard::http
