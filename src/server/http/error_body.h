// Bodies of errors, without paths of this machine.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "core/error.h"

namespace switchyard::http {

// JSON bodies of error responses, in one format for all endpoints.

inline constexpr char kJson[] = "application/json";

// HTTP status of an error of this kind: 400, 401, 404, 413, 429 (kBusy), 503 (kUnavailable) or 500.
int StatusOf(ErrorKind kind);

// {"error": {message, type, param, code}} for OpenAI clients. The same fields and "object": "error"
// are at the top level for SGLang clients; there, "code" is the status. `type` follows from the
// status. Empty `code` and `param` become null. Invalid UTF-8 in `message` is replaced. Absolute
// paths in `message` are kept; Responder::SendError hides them.
std::string ErrorBody(int status, std::string_view message, std::string_view code = {},
                      std::string_view param = {});

// Removes the directories of this host from error messages.

// First components of absolute paths: names of entries of "/".
using RootNames = std::set<std::string, std::less<>>;

// The names of the entries of "/" on this host, and the usual names on Linux, because the error of
// a rank may contain a path of another host. Names with which a route begins are left out.
RootNames ReadRootNames();

// Reduces each absolute path in `message` to its last component: "/models/x/config.json: bad"
// becomes "config.json: bad". A path begins with "/" and one of `roots`, after white space, a quote
// or an opening bracket, and has two components or more. So routes such as /v1/models, URLs and
// most texts of requests stay unchanged.
std::string HidePaths(std::string_view message, const RootNames& roots);
// HidePaths with the result of ReadRootNames, which is called only once.
std::string HidePaths(std::string_view message);

}  // namespace switchyard::http
