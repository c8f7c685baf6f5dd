// The fields of a request to a prefill or a decode worker.
#pragma once

#include <cstddef>
#include <optional>

#include "server/api/json_body.h"
#include "server/args/args.h"
#include "server/front/kv_transfers.h"

namespace switchyard {

// SGLang's bootstrap_room (an integer from 0), bootstrap_host and bootstrap_port, for prompt `i` of
// `prompts`. Each field is one value for all prompts, or a list with one value for each. Returns
// nullopt without a room. A decode worker needs the host; the port's default is
// --disaggregation-bootstrap-port.
// Throws RequestError for other values.
std::optional<KvRoom> ParseBootstrap(const ServerArgs& args, const Fields& f, size_t i = 0,
                                     size_t prompts = 1);

}  // namespace switchyard
