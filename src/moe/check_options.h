// Checks of the flags of MoE layers. `engine/checks` calls them before ranks start; backends and
// dispatchers only assert what these functions guarantee. Flags of ranks on GPUs: gpu_options.h.
#pragma once

#include <vector>

#include "comm/mesh.h"
#include "moe/backends.h"
#include "moe/options.h"

namespace switchyard {

// All functions throw Error kInvalid, which names the flag.

// Ranges of values, and flags that the model's experts do not support. On CPUs and GPUs.
void CheckMoeValues(const MoeOptions& options, const MoeShape& shape, const MeshShape& mesh);

// The names of the backends, including those of the draft model, and flags that a backend does not
// support. For ranks on CPUs.
void CheckMoeBackends(const MoeOptions& options, const MoeBackends& backends);

// Whether permutes connect the exchange to the runner, and the runner (or the fused operator)
// supports experts in `formats`. Constructs the backends for one rank with minimal sizes, because
// layouts and formats are properties of an object. For ranks on CPUs; requires CheckMoeBackends.
void CheckMoePair(const MoeOptions& options, const std::vector<WeightFormat>& formats,
                  const MoeBackends& backends);

}  // namespace switchyard
