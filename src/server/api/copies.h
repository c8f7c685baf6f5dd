// The generations that one request asks for.
#pragma once

#include <cstdint>
#include <vector>

#include "server/api/client_names.h"
#include "server/front/front.h"

namespace switchyard {

// Appends `n` copies of `spec`, a prompt of one request, to that request's `specs`. Copies of a
// prompt are meant to differ, so a given seed is the first one's and the others count on from it.
// Throws what Front::Check throws, in the client's names, before anything is copied. RequestError
// where the request as a whole asks for too much.
void AddCopies(const Front& front, GenerationSpec spec, int64_t n, const ClientNames& names,
               std::vector<GenerationSpec>& specs);

}  // namespace switchyard
