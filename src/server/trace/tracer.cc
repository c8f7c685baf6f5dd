#include "server/trace/tracer.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/log.h"

namespace switchyard::trace {
namespace {

template <typename Duration>
int64_t Nanoseconds(Duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

const char* Name(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return "none";
}

constexpr std::chrono::milliseconds kFirstDelay{500}, kMaxDelay{15'000};

}  // namespace

Tracer::Tracer(Options options)
    : options_(std::move(options)),
      unix_offset_ns_(Nanoseconds(std::chrono::system_clock::now().time_since_epoch()) -
                      Nanoseconds(Clock::now().time_since_epoch())),
      thread_([this] { Run(); }) {}

Tracer::~Tracer() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    last_ = Clock::now() + options_.last_timeout;
  }
  news_.notify_all();
  thread_.join();
}

int64_t Tracer::UnixNs(Clock::time_point time) const {
  return Nanoseconds(time.time_since_epoch()) + unix_offset_ns_;
}

void Tracer::AddRequest(const http::ServedRequest& served) {
  const http::Request& request = *served.request;
  if (!request.trace) return;
  Span span{.trace_id = request.trace->trace_id,
            .span_id = request.trace->span_id,
            .parent_id = request.trace->parent_id,
            .name = request.method + ' ' + (served.route.empty() ? "unknown" : served.route),
            .server = true,
            .begin_ns = UnixNs(served.begin),
            .end_ns = UnixNs(served.end),
            .failed = served.status >= 500 || served.cut,
            .attributes = {{"request.id", request.id},
                           {"http.request.method", request.method},
                           {"url.path", request.path},
                           {"http.response.status_code", served.status},
                           {"client.address", request.peer}}};
  if (!served.tokens.model.empty()) {
    span.attributes.emplace_back("gen_ai.request.model", served.tokens.model);
    span.attributes.emplace_back("gen_ai.response.id", served.tokens.response_id);
    span.attributes.emplace_back("gen_ai.usage.input_tokens", served.tokens.prompt);
    span.attributes.emplace_back("gen_ai.usage.output_tokens", served.tokens.completion);
  }
  Add(std::move(span));
}

void Tracer::AddGeneration(const http::TraceContext& request, const GenerationEvent& event,
                           const std::string& response_id) {
  const metrics::RequestTimes& times = event.times;
  const auto add = [&](const char* name, Clock::time_point begin, Clock::time_point end,
                       std::vector<Attribute> attributes) {
    attributes.emplace_back("gen_ai.response.id", response_id);
    attributes.emplace_back("switchyard.generation", static_cast<int64_t>(event.id));
    Add({.trace_id = request.trace_id,
         .span_id = NewSpanId(),
         .parent_id = request.span_id,
         .name = name,
         .begin_ns = UnixNs(begin),
         .end_ns = UnixNs(std::max(begin, end)),
         .failed = event.finish == FinishReason::kError,
         .attributes = std::move(attributes)});
  };
  const auto now = Clock::now();
  if (times.submitted == Clock::time_point()) return;  // a probe of the server itself
  if (!times.has_token || times.queue_seconds < 0) {   // it ended before a token
    add("queue", times.submitted, now, {{"gen_ai.response.finish_reason", Name(event.finish)}});
    return;
  }
  const auto admitted = std::min(
      times.first_token, times.submitted + std::chrono::duration_cast<Clock::duration>(
                                               std::chrono::duration<double>(times.queue_seconds)));
  add("queue", times.submitted, admitted, {});
  add("prefill", admitted, times.first_token,
      {{"gen_ai.usage.input_tokens", event.prompt_tokens},
       {"switchyard.cached_tokens", event.cached_tokens}});
  add("decode", times.first_token, times.last_token,
      {{"gen_ai.usage.output_tokens", event.completion_tokens},
       {"gen_ai.response.finish_reason", Name(event.finish)}});
}

void Tracer::Add(Span span) {
  {
    std::lock_guard lock(mutex_);
    if (queue_.size() >= options_.queue) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    queue_.push_back(std::move(span));
    if (queue_.size() < options_.batch) return;
  }
  news_.notify_one();
}

bool Tracer::Overdue() {
  std::lock_guard lock(mutex_);
  return ends_ && Clock::now() >= last_;
}

bool Tracer::Send(const std::vector<Span>& batch) {
  int status = 0;
  try {
    status = PostJson(options_.endpoint, ToOtlpJson(options_.resource, batch),
                      IoLimit::After(options_.timeout, [this] { return Overdue(); }));
  } catch (const Error& error) {  // the host does not exist
    LOG_DEBUG("traces: {}", error.what());
  }
  if (status >= 200 && status < 300) {
    exported_ += batch.size();
    return true;
  }
  // By OTLP's specification, the other failures are not repeated.
  const bool repeat = status == 0 || status == 429 || (status >= 502 && status <= 504);
  if (repeat) return false;
  dropped_ += batch.size();
  if (!std::exchange(refused_, true))
    LOG_WARNING(
        "traces: {} refused {} spans with status {}; further refusals are not logged, but counted "
        "(switchyard_trace_spans_dropped_total)",
        options_.endpoint.address.Text(), batch.size(), status);
  return true;
}

void Tracer::Run() {
  std::vector<Span> batch;  // the oldest spans, also while they are sent again
  auto delay = kFirstDelay;
  bool reported = false;
  std::unique_lock lock(mutex_);
  while (true) {
    const auto wait = batch.empty() ? options_.interval : delay;
    news_.wait_for(lock, wait,
                   [&] { return ends_ || (batch.empty() && queue_.size() >= options_.batch); });
    if (batch.empty()) {
      const auto count = static_cast<std::ptrdiff_t>(std::min(queue_.size(), options_.batch));
      std::move(queue_.begin(), queue_.begin() + count, std::back_inserter(batch));
      queue_.erase(queue_.begin(), queue_.begin() + count);
    }
    const bool ends = ends_;
    if (batch.empty()) {
      if (ends) return;
      continue;
    }
    lock.unlock();
    const bool sent = !Overdue() && Send(batch);
    if (!sent && !ends && !std::exchange(reported, true))
      LOG_WARNING("traces: {} does not respond; spans wait, and are dropped when {} wait",
                  options_.endpoint.address.Text(), options_.queue);
    lock.lock();
    if (sent) {
      batch.clear();
      delay = kFirstDelay;
      reported = false;
    } else if (ends) {
      const size_t left = batch.size() + queue_.size();
      dropped_ += left;
      LOG_WARNING("traces: {} spans are dropped at the end, because {} did not respond in time",
                  left, options_.endpoint.address.Text());
      return;
    } else {
      delay = std::min(2 * delay, kMaxDelay);
    }
  }
}

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
