// The table of backends and their pairings that `switchyard backends` prints.
#pragma once

#include <string>
#include <vector>

#include "moe/backends.h"

namespace switchyard {

// Lists dispatchers, fused operators, runners with their weight formats, which dispatchers and
// runners pair through which permutes, and the mapping of SGLang's names. `options` selects the
// modes that decide which layouts a dispatcher delivers. The facts come from backends that are
// built for one rank with minimal sizes. Error kInvalid if a backend rejects `options`.
std::string BackendTable(const MoeOptions& options, const MoeBackends& backends);

// The backend that the options select for experts of these formats, with the reason; or the reason
// why none fits.
std::string ExplainChoice(const MoeOptions& options, const std::vector<WeightFormat>& formats,
                          const MoeBackends& backends);

}  // namespace switchyard
