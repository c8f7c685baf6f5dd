// What can be decided about a request from its header alone: who may come in, and who answers.
#pragma once

#include <string>
#include <string_view>

#include "server/http/http_server.h"
#include "server/http/router.h"

namespace switchyard::http {

// Either a handler, or the answer that the server gives itself.
struct Admission {
  const Handler* handler = nullptr;
  int status = 0;       // of the server's own answer, when there is no handler
  std::string message;  // of its error body
  std::string code;
  Headers headers;

  static Admission Refuse(int status, std::string message, std::string code, Headers headers = {});
};

// Whether anyone may call `path`, and does so beyond the limit of connections too: a probe.
bool NeedsNoKey(const ServerOptions& options, const std::string& path);

// Fills in path, query and params of `request`, whose method and headers are set. In this order:
// 400 malformed target, 204 for OPTIONS, 403 a page of another origin, 401 key missing or wrong,
// 404 unknown path, 405 wrong method, 401 or 403 without the admin key. The key goes before the
// path, so that routes cannot be explored without one.
Admission Admit(const ServerOptions& options, const Router& router, std::string_view target,
                Request& request);

}  // namespace switchyard::http
