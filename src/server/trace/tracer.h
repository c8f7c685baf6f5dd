// Exports spans of requests to an OpenTelemetry collector.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/args/args.h"
#include "server/front/generation.h"
#include "server/http/served_request.h"
#include "server/trace/otlp.h"

namespace switchyard::trace {

// Spans wait in a bounded queue, from which a thread of its own sends them in batches. If the
// queue is full, because the collector is slow or absent, further spans are dropped and counted.
// So no call blocks. Any thread may call any member.
class Tracer {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    Endpoint endpoint;
    Resource resource;
    size_t queue = 16384;                          // spans
    size_t batch = 512;                            // spans of one request to the collector
    std::chrono::milliseconds interval{500};       // between two batches that are not full
    std::chrono::milliseconds timeout{5000};       // of one request
    std::chrono::milliseconds last_timeout{1000};  // of all requests that remain, at the end
  };
  explicit Tracer(Options options);
  // Sends the queue until last_timeout has passed, and drops the rest. A request in progress is
  // given up then too, up to 0.1 s later. Only the resolution of a host name can take longer.
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // The span of an HTTP request.
  void AddRequest(const http::ServedRequest& served);
  // The spans of one generation of a request: queue, prefill and decode, as far as they began.
  // `event`: the last one. `response_id`: the id in the response.
  void AddGeneration(const http::TraceContext& request, const GenerationEvent& event,
                     const std::string& response_id);

  uint64_t exported() const { return exported_; }
  uint64_t dropped() const { return dropped_; }

 private:
  int64_t UnixNs(Clock::time_point time) const;
  void Add(Span span);
  void Run();
  bool Overdue();  // the destructor has waited for last_timeout
  // Sends the batch. False: it may be sent again. A refused batch is dropped.
  bool Send(const std::vector<Span>& batch);

  const Options options_;
  const int64_t unix_offset_ns_;  // system clock minus steady clock, at the start
  std::atomic<uint64_t> exported_{0}, dropped_{0};
  bool refused_ = false;  // a refusal has been logged; used by the thread only
  std::mutex mutex_;      // guards the members below
  std::condition_variable news_;
  std::vector<Span> queue_;
  bool ends_ = false;
  Clock::time_point last_;  // set with ends_: time at which the thread gives up
  std::thread thread_;      // last: it uses the members above
};

// Tracing as the command line configures it.

// Null without --enable-trace.
std::shared_ptr<Tracer> MakeTracer(const ServerArgs& args);

}  // namespace switchyard::trace
