// Tracing as the command line configures it.
#pragma once

#include <memory>

#include "server/args/args.h"
#include "server/http/served_request.h"
#include "server/trace/tracer.h"

namespace switchyard::trace {

// Null without --enable-trace.
std::shared_ptr<Tracer> MakeTracer(const ServerArgs& args);

// Adds a span for each request to `tracer`; null if `tracer` is null.
std::shared_ptr<http::RequestObserver> MakeObserver(std::shared_ptr<Tracer> tracer);

}  // namespace switchyard::trace
