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
  std::optional<size_t> length;  // bytes of the body; absent: see `chunked`
  bool chunked = false;  // if false and `length` is absent, the end of the connection ends the body
  bool keep_alive = true;
};

// Serializes the head, including the empty line. Line breaks inside values become spaces.
std::string Serialize(const ResponseHead& head);

}  // namespace switchyard::http
