// Tracing as the command line configures it.
#pragma once

#include <memory>

#include "server/args/args.h"
#include "server/trace/tracer.h"

namespace switchyard::trace {

// Null without --enable-trace.
std::shared_ptr<Tracer> MakeTracer(const ServerArgs& args);

}  // namespace switchyard::trace
