#include "server/trace/set_up.h"

#include <unistd.h>

#include "core/format.h"
#include "core/log.h"

namespace switchyard::trace {

std::shared_ptr<Tracer> MakeTracer(const ServerArgs& args) {
  if (!args.observe.enable_trace) return nullptr;
  const Endpoint endpoint = Endpoint::Parse(args.observe.otlp_traces_endpoint);
  LOG_INFO("traces of requests are sent to http://{}{}", endpoint.address.Text(), endpoint.path);
  return std::make_shared<Tracer>(Tracer::Options{
      .endpoint = endpoint,
      .resource = {.service = "switchyard",
                   .version = SWITCHYARD_VERSION,
                   .instance = fmt::format("{}:{}/{}", args.host, args.port, getpid())}});
}

}  // namespace switchyard::trace
