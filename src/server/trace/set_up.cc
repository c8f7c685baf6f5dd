#include "server/trace/set_up.h"

#include <unistd.h>

#include <utility>

#include "core/format.h"
#include "core/log.h"

namespace switchyard::trace {
namespace {

class TraceObserver : public http::RequestObserver {
 public:
  explicit TraceObserver(std::shared_ptr<Tracer> tracer) : tracer_(std::move(tracer)) {}
  bool traces() const override { return true; }
  void OnServed(const http::ServedRequest& served) override { tracer_->AddRequest(served); }

 private:
  const std::shared_ptr<Tracer> tracer_;
};

}  // namespace

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

std::shared_ptr<http::RequestObserver> MakeObserver(std::shared_ptr<Tracer> tracer) {
  if (!tracer) return nullptr;
  return std::make_shared<TraceObserver>(std::move(tracer));
}

}  // namespace switchyard::trace
