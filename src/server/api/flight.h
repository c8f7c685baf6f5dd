// All generations of one HTTP request, from submission to the answer.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/api/accumulated.h"
#include "server/front/service.h"
#include "server/http/http_server.h"
#include "server/http/memory_budget.h"

namespace switchyard {

// Submits the specs together, gathers their events, and aborts what still runs when the client goes
// away. Lives as long as one of its generations or its connection refers to it. Events arrive on
// the front's reader thread; those that are large, and the end, are worked on by a worker, so that
// one long answer does not hold up the streams of others. Order is kept.
class Flight : public std::enable_shared_from_this<Flight> {
 public:
  struct Events {
    // News of generation i, with what it has so far; may be empty.
    std::function<void(size_t i, const GenerationEvent&, const Accumulated&)> on_news;
    // All have ended.
    std::function<void(const std::vector<Accumulated>&)> on_end;
  };

  // Throws what Front::Submit throws, with nothing left running, and what MemoryCharge::Require
  // does for prompts. With `stream`, begins an event stream once all are accepted, before any news.
  // Results that exceed the memory for requests end the flight with an error.
  static void Start(Service& service, const std::vector<GenerationSpec>& specs, bool stream,
                    const http::Responder& responder, Events events);

 private:
  struct News {
    size_t i;
    GenerationEvent event;
  };

  Flight(Service& service, size_t count, bool stream, const http::Responder& responder,
         Events events);
  void OnEvent(size_t i, const GenerationEvent& event);
  void Process(const News& news);
  void ProcessQueue();
  void Note(const GenerationEvent& event);
  void GiveUp(const Error& error);
  void Abort();

  Service& service_;
  const bool stream_;
  const Events events_;
  const std::chrono::steady_clock::time_point start_;
  std::vector<uint64_t> ids_;  // written before events are processed

  std::mutex mutex_;  // guards the next two and responder_
  std::deque<News> queue_;
  bool working_ = true;  // a thread is in Process: only that one touches what follows
  std::optional<http::Responder> responder_;  // until the end; callbacks hold copies of their own

  std::vector<Accumulated> so_far_;
  http::MemoryCharge memory_;
  http::ServedTokens served_;
  size_t open_;
};

}  // namespace switchyard
