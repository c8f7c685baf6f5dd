// Parts of the front that a server and the engine within a process make from flags.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/rank_engine.h"
#include "server/front/front.h"
#include "server/front/grammars.h"
#include "server/front/served_model.h"

namespace switchyard {

// `queued_per_running`: without --max-queued-requests, the number of requests that may wait for
// each one that may run; 0: no limit.
Front::Limits FrontLimits(const ServerArgs& args, const EnginePlan& plan,
                          int64_t queued_per_running);

// Null with --grammar-backend none. Borrows the tokenizer of `model`.
std::unique_ptr<Grammars> MakeGrammars(const ServerArgs& args, const ServedModel& model);

}  // namespace switchyard
