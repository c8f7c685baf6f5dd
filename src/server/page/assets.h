// The files of the web page, which are part of the program.
#pragma once

#include <span>
#include <string_view>

namespace switchyard::page {

struct Asset {
  std::string_view name;  // "index.html"
  std::string_view content_type;
  std::string_view etag;  // a hash of the text, in quotes
  std::string_view text;
};

// The files of the folder `assets`, ordered by name. cmake/embed.cmake makes the definition.
std::span<const Asset> Assets();

}  // namespace switchyard::page
