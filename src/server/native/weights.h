// SGLang's control endpoints for the weights and the memory of the ranks.
#pragma once

#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard::native {

// /update_weights_from_disk, /update_weights_from_tensor, /update_weight_version,
// /get_weights_by_name, /weights_checker,
// /release_memory_occupation and /resume_memory_occupation. All need the admin key if one is set.
void RegisterWeights(http::Server& server, Service& service);

}  // namespace switchyard::native
