// Expands a prompt into its n generations.
#pragma once

#include <cstdint>
#include <vector>

#include "server/api/client_names.h"
#include "server/front/front.h"

namespace switchyard {

// Appends `n` copies of `spec` to `specs`, the generations of one request. With a seed, copy i has
// seed + i, so that copies of a prompt differ. Throws the errors of Front::Check with the client's
// field names, and RequestError if the request exceeds a limit (copies.cc). On an error, `specs` is
// unchanged.
void AddCopies(const Front& front, GenerationSpec spec, int64_t n, const ClientNames& names,
               std::vector<GenerationSpec>& specs);

}  // namespace switchyard
