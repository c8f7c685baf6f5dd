// The engine's names of parameters, and the fields by which a client sent them.
#pragma once

#include <exception>
#include <map>
#include <string>

#include "server/front/front.h"

namespace switchyard {

// By the engine's name ("max_new_tokens"): the client's field ("max_tokens"). What is absent has
// the same name; "prompt" stands for the prompt itself.
using ClientNames = std::map<std::string, std::string>;

// To be called where an exception of Front::Check is being handled: throws it again as a
// RequestError that has the client's names, "context_length_exceeded" where the prompt is too long.
[[noreturn]] void RethrowNamed(const ClientNames& names);

}  // namespace switchyard
