// What names a request beyond this server: its id and the trace that it belongs to.
#pragma once

#include <string>

#include "server/http/http_server.h"

namespace switchyard::http {

// X-Request-Id where it is 1 to 128 printable characters without spaces, else a new one: 32
// hexadecimal digits.
std::string RequestId(const Request& request);

// traceparent where it has the form of W3C Trace Context, else empty.
std::string TraceParent(const Request& request);

// "" or ", 12 prompt tokens (8 cached), …": the end of a request's log line.
std::string DescribeTokens(const ServedTokens& served);

}  // namespace switchyard::http
