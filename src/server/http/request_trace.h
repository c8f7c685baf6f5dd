// Request ids and trace context of requests.
#pragma once

#include <memory>
#include <string>

#include "server/http/served_request.h"

namespace switchyard::http {

// X-Request-Id if it has 1 to 128 printable characters without spaces. Otherwise a new id of 32
// hexadecimal digits.
std::string RequestId(const Request& request);

// The traceparent header if it is valid by W3C Trace Context, otherwise empty.
std::string TraceParent(const Request& request);

// A new span in the trace of the traceparent header, or in a new trace. Null if the header says
// that the trace is not sampled.
std::shared_ptr<const TraceContext> NewTrace(const Request& request);

// The end of a request's log line: "" or ", model m, 12 prompt tokens (8 cached), …".
std::string DescribeTokens(const ServedTokens& served);

}  // namespace switchyard::http
