// Maps the engine's parameter names to the client's field names, for error messages.
#pragma once

#include <exception>
#include <map>
#include <string>

#include "server/front/front.h"

namespace switchyard {

// Key: the engine's parameter, such as "max_new_tokens", or "prompt" for the prompt. Value: the
// client's field, such as "max_tokens". A parameter that is not in the map has the same name in the
// engine and for the client.
using ClientNames = std::map<std::string, std::string>;

// Rethrows the current exception of Front::Check as a RequestError with the client's field names.
// A ContextLengthError gets the code "context_length_exceeded". Call it from a catch block only.
[[noreturn]] void RethrowWithClientNames(const ClientNames& names);

}  // namespace switchyard
