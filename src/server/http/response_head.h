// Status line and headers of a response.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "server/http/http_server.h"

namespace switchyard::http {

struct ResponseHead {
  int status = 200;
  std::string content_type;  // empty: none is sent
  Headers extra;
  std::optional<size_t> length;  // of the body, bytes; none: see `chunked`
  bool chunked = false;  // without length and chunks the body ends where the connection does
  bool keep_alive = true;
};

// The head as sent, up to and including the empty line. Line breaks inside values become spaces.
std::string Serialize(const ResponseHead& head);

}  // namespace switchyard::http
