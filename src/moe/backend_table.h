// What can be put together on this machine, as text: `switchyard backends`.
#pragma once

#include <string>
#include <vector>

#include "moe/backends.h"

namespace switchyard {

// Dispatchers, fused operators, runners with the formats they take, what pairs with what by way of
// which permutes, and how SGLang's names are understood. `options`: of the modes that decide which
// layouts a dispatcher delivers. Asks the backends themselves, which are built for one rank of
// made-up sizes; error kInvalid as theirs.
std::string BackendTable(const MoeOptions& options, const MoeBackends& backends);

// What the options choose for experts of these formats, and why; or why they fit nothing.
std::string ExplainChoice(const MoeOptions& options, const std::vector<WeightFormat>& formats,
                          const MoeBackends& backends);

}  // namespace switchyard
