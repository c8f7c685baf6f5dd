// The OpenAPI document of the server's endpoints, and the page that shows it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/api/json_body.h"
#include "server/front/service.h"
#include "server/http/http_server.h"
#include "server/http/router.h"

namespace switchyard::openapi {

// GET /openapi.json and GET /docs.

// `server` and `service` outlive the routes. Other routes may be registered later.
void Register(http::Server& server, const Service& service);

// The OpenAPI document of a server.

// An OpenAPI 3.1 document of all routes of `router`. The bodies of requests follow the tables of
// known fields that the parsers use; defaults of sampling fields are those of the model.
// `with_keys`: the server requires an API key.
Json Document(const Service& service, const http::Router& router, bool with_keys);

// The operations of the server: one entry for each method and path.

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

// The page of GET /docs.

// An HTML page without references to other sites. Its script reads openapi.json at the same base
// URL, and lists the operations with the fields of their bodies.
std::string_view DocsPage();

}  // namespace switchyard::openapi
