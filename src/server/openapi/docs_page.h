// The page of GET /docs.
#pragma once

#include <string_view>

namespace switchyard::openapi {

// HTML without references to other sites. Its script reads openapi.json, which is next to it, and
// lists the operations with the fields of their bodies.
std::string_view DocsPage();

}  // namespace switchyard::openapi
