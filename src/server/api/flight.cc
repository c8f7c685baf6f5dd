#include "server/api/flight.h"

#include <string>
#include <utility>

#include "core/error.h"
#include "server/http/sse.h"

namespace switchyard {
namespace {

// Clients that guess the charset of text/* guess wrong for characters outside of ASCII.
const std::string kStreamType = std::string(http::kEventStream) + "; charset=utf-8";

}  // namespace

Flight::Flight(Service& service, size_t count, Events events)
    : service_(service), events_(std::move(events)), so_far_(count), open_(count) {}

void Flight::Start(Service& service, const std::vector<GenerationSpec>& specs, bool stream,
                   const http::Responder& responder, Events events) {
  if (!service.ready)
    throw Error(ErrorKind::kUnavailable, "the server is still loading", "try again later");
  const std::shared_ptr<Flight> flight(new Flight(service, specs.size(), std::move(events)));
  {
    std::lock_guard lock(flight->mutex_);  // no news before all are accepted and the stream is open
    try {
      for (size_t i = 0; i < specs.size(); ++i) {
        flight->ids_.push_back(service.front.Submit(
            specs[i], [flight, i](const GenerationEvent& e) { flight->OnEvent(i, e); }));
      }
    } catch (...) {
      flight->open_ = 0;  // no events of those already accepted
      for (uint64_t id : flight->ids_) service.front.Abort(id);
      throw;
    }
    if (stream) responder.BeginStream(200, kStreamType);
  }
  responder.OnClose([weak = std::weak_ptr(flight)] {
    if (const auto alive = weak.lock()) alive->Abort();
  });
}

void Flight::OnEvent(size_t i, const GenerationEvent& event) {
  std::lock_guard lock(mutex_);
  if (open_ == 0) return;
  so_far_[i].Add(event);
  if (events_.on_news) events_.on_news(i, event, so_far_[i]);
  if (event.finished() && --open_ == 0) events_.on_end(so_far_);
}

void Flight::Abort() {
  for (uint64_t id : ids_) service_.front.Abort(id);  // no effect on those that have ended
}

}  // namespace switchyard
