// The page of GET /docs.
#pragma once

#include <string_view>

namespace switchyard::openapi {

// An HTML page without references to other sites. Its script reads openapi.json at the same base
// URL, and lists the operations with the fields of their bodies.
std::string_view DocsPage();

}  // namespace switchyard::openapi
