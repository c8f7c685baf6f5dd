// `switchyard plan` and `switchyard simulate`.
#pragma once

#include <memory>

#include "server/args/plan_args.h"

namespace switchyard {

struct MoeBackends;

int RunPlan(const PlanArgs& args, const std::shared_ptr<const MoeBackends>& backends);
int RunSimulate(const SimulateArgs& args, const std::shared_ptr<const MoeBackends>& backends);

}  // namespace switchyard
