// All generations of one HTTP request, from submission to the answer.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "server/api/accumulated.h"
#include "server/front/service.h"
#include "server/http/http_server.h"

namespace switchyard {

// Submits the specs together, gathers their events, and aborts what still runs when the client goes
// away. Lives as long as one of its generations or its connection refers to it. Events arrive on
// the front's reader thread.
class Flight : public std::enable_shared_from_this<Flight> {
 public:
  struct Events {
    // News of generation i, with what it has so far; may be empty.
    std::function<void(size_t i, const GenerationEvent&, const Accumulated&)> on_news;
    // All have ended.
    std::function<void(const std::vector<Accumulated>&)> on_end;
  };

  // Throws what Front::Submit throws, with nothing left running. With `stream`, begins an event
  // stream once all are accepted, before any news.
  static void Start(Service& service, const std::vector<GenerationSpec>& specs, bool stream,
                    const http::Responder& responder, Events events);

 private:
  Flight(Service& service, size_t count, Events events);
  void OnEvent(size_t i, const GenerationEvent& event);
  void Abort();

  Service& service_;
  const Events events_;
  std::mutex
      mutex_;  // submission and reader thread; held while callbacks run, so that news stay in order
  std::vector<uint64_t> ids_;
  std::vector<Accumulated> so_far_;
  size_t open_;
};

}  // namespace switchyard
