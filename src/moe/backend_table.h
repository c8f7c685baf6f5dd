// The table of backends and their pairings that `switchyard backends` prints.
#pragma once

#include <string>
#include <vector>

#include "moe/backends.h"

namespace switchyard {

// Returns a text that lists dispatchers, fused operators, and runners with their weight formats. It
// also shows the permutes that pair each dispatcher with each runner, and the mapping of SGLang's
// names. `options` selects the modes, which determine the layouts that a dispatcher delivers. The
// properties are those of backends that are built for one rank with minimal sizes. Error kInvalid
// if a backend rejects `options`.
std::string BackendTable(const MoeOptions& options, const MoeBackends& backends);

// Returns a text with the backend that the options select for experts of these formats, and why it
// was selected. If no backend supports the formats, the text says why.
std::string ExplainChoice(const MoeOptions& options, const std::vector<WeightFormat>& formats,
                          const MoeBackends& backends);

}  // namespace switchyard
