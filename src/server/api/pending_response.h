// All generations of one HTTP request, from submission to the response.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/api/accumulated.h"
#include "server/front/service.h"
#include "server/http/http_server.h"
#include "server/http/memory_budget.h"

namespace switchyard {

// Submits all specs, collects their events, and aborts running generations if the client
// disconnects. Kept alive by its generations and its connection. Events arrive on the front's
// reader thread. Large events and complete responses go to a worker thread, so that one long
// response does not delay the streams of other requests. The order of events is kept.
class PendingResponse : public std::enable_shared_from_this<PendingResponse> {
 public:
  struct Events {
    // Called for each event of generation i, with the accumulated output of the generation. May be
    // null.
    std::function<void(size_t i, const GenerationEvent&, const Accumulated&)> on_news;
    // Called once, after all generations have finished.
    std::function<void(const std::vector<Accumulated>&)> on_end;
    // Number of bytes of text that the response repeats from the request, such as an echoed prompt
    // in each choice.
    size_t text_bytes = 0;
    // The id of the response, for logs and traces. Empty: the name or the number of a generation.
    std::string response_id;
  };

  // Throws the errors of Front::Submit, after it has aborted the generations already submitted.
  // Throws the errors of MemoryCharge::Require for the prompts. With `stream`, begins an event
  // stream after all generations are accepted and before the first event. If the results exceed the
  // memory budget for requests, the request ends with an error.
  static void Start(Service& service, const std::vector<GenerationSpec>& specs, bool stream,
                    const http::Responder& responder, Events events);

 private:
  struct News {
    size_t i;
    GenerationEvent event;
  };

  PendingResponse(Service& service, const std::vector<GenerationSpec>& specs, bool stream,
                  const http::Responder& responder, Events events);
  void OnEvent(size_t i, const GenerationEvent& event);
  void Process(size_t i, const GenerationEvent& event);
  void ProcessQueue();
  void Note(const GenerationEvent& event);
  std::string IdOf(size_t i, const GenerationEvent& event) const;
  void Trace(size_t i, const GenerationEvent& event);
  void MeasureCopies() const;
  void GiveUp(const Error& error);
  void Abort();

  Service& service_;
  const bool stream_;
  const Events events_;
  const std::chrono::steady_clock::time_point start_;
  std::vector<uint64_t> ids_;       // set before events are processed
  std::vector<std::string> names_;  // of the generations
  // Index of the first generation of each prompt, in order of prompts.
  std::vector<size_t> first_copies_;

  std::mutex mutex_;  // guards queue_, working_ and responder_
  std::vector<News> queue_;
  bool working_ = true;  // a thread processes events; only that thread accesses the members below
  std::optional<http::Responder> responder_;  // reset when the response ends; callbacks have copies

  std::vector<Accumulated> so_far_;
  http::MemoryCharge memory_;
  http::ServedTokens served_;
  size_t open_;
};

}  // namespace switchyard
