// The operations of the server: one entry for each method and path.
#pragma once

#include <span>

namespace switchyard::openapi {

struct Operation {
  const char* method;
  const char* path;
  const char* tag;
  const char* summary;
  const char* body = "";      // schema of the request's body; empty: no body
  const char* response = "";  // schema of the response with status 200; empty: see `text`
  const char* text = "";      // media type of a response that is not JSON
  const char* event = "";     // schema of the events of a stream; empty: no streams
  bool done = false;          // true: a stream ends with an event whose data is [DONE]
  bool optional_body = false;
  // The registered path of the route that serves `path`; empty: `path` itself.
  const char* route = "";
};

std::span<const Operation> Operations();

}  // namespace switchyard::openapi
