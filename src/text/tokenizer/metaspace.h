// "Metaspace", a pre-tokenizer and a decoder: spaces are written as a visible character.
#pragma once

#include <string>

#include "text/tokenizer/json_node.h"

namespace switchyard {

struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };

  std::string replacement;  // one character
  Prepend prepend;          // pieces that get a leading space: all, the first of the input, none
  bool split;
};

Metaspace ReadMetaspace(const JsonNode& node);

}  // namespace switchyard
