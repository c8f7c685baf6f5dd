#include "server/api/pending_response.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "core/error.h"
#include "server/http/error_body.h"
#include "server/http/responses.h"
#include "server/http/worker_pool.h"
#include "server/trace/tracer.h"

namespace switchyard {
namespace {

// Without a charset in the type, some clients decode non-ASCII characters of text/* wrongly.
const std::string kStreamType = std::string(http::kEventStream) + "; charset=utf-8";

using Clock = std::chrono::steady_clock;

// Bytes of one log-probability as JSON, held until the response is written.
constexpr size_t kAlternativeBytes = 384;
// The prompt's ids are held three times: in the spec, in Front and in the message to the ranks.
constexpr size_t kPromptCopies = 3, kGenerationBytes = 4 << 10;
// Memory per byte of text: a string, a JSON value and the serialized JSON hold copies, and escapes
// lengthen the serialized one.
constexpr size_t kTextFactor = 4;

size_t CostOf(const std::vector<PositionLogprobs>& positions) {
  size_t count = positions.size();
  for (const PositionLogprobs& p : positions) count += p.top.size() + p.requested.size();
  return count * kAlternativeBytes;
}

// Bytes of memory that an event adds to the request: the results in the event, and the JSON built
// from those results.
size_t CostOf(const GenerationEvent& e) {
  // Bytes of one id and one float as JSON, which is held twice.
  constexpr size_t kTokenBytes = 32, kFloatBytes = 40;
  return kTextFactor * e.text.size() + kTokenBytes * e.tokens.size() +
         kTokenBytes * e.routed_experts.size() / 4 + kFloatBytes * e.pooled.size() +
         CostOf(e.input_logprobs) + CostOf(e.output_logprobs);
}

}  // namespace

PendingResponse::PendingResponse(Service& service, const std::vector<GenerationSpec>& specs,
                                 bool stream, const http::Responder& responder, Events events)
    : service_(service),
      stream_(stream),
      events_(std::move(events)),
      start_(Clock::now()),
      responder_(responder),
      so_far_(specs.size()),
      memory_(responder.budget()),
      open_(specs.size()) {
  served_.model = service.model.name;
  served_.response_id = events_.response_id;
  for (size_t i = 0; i < specs.size(); ++i) {
    names_.push_back(specs[i].name);
    if (specs[i].copy == 0) first_copies_.push_back(i);
  }
}

void PendingResponse::Start(Service& service, const std::vector<GenerationSpec>& specs, bool stream,
                            const http::Responder& responder, Events events) {
  if (!service.ready)
    throw Error(ErrorKind::kUnavailable, "the server is still loading", "try again later");
  const std::shared_ptr<PendingResponse> pending(
      new PendingResponse(service, specs, stream, responder, std::move(events)));
  size_t bytes = kTextFactor * pending->events_.text_bytes;
  for (const GenerationSpec& spec : specs)
    bytes += kGenerationBytes + kPromptCopies * sizeof(int32_t) * spec.input_ids.size();
  pending->memory_.Require(bytes);
  service.front.CheckCapacity(specs.size());
  // working_ is initially true, so other threads only append events to queue_. Thus no event is
  // processed before all generations are accepted and the stream is open.
  try {
    for (size_t i = 0; i < specs.size(); ++i) {
      pending->ids_.push_back(service.front.Submit(
          specs[i], [pending, i](const GenerationEvent& e) { pending->OnEvent(i, e); }));
    }
  } catch (...) {
    pending->Abort();  // aborts the generations already accepted; sends no response
    throw;
  }
  if (stream) responder.BeginStream(200, kStreamType);
  responder.OnClose([weak = std::weak_ptr(pending)] {
    if (const auto alive = weak.lock()) alive->Abort();
  });
  pending->ProcessQueue();
}

void PendingResponse::OnEvent(size_t i, const GenerationEvent& event) {
  const bool small = CostOf(event) <= http::WorkerPool::kQuickBytes;
  std::optional<http::Responder> responder;
  {
    std::lock_guard lock(mutex_);
    if (working_) {
      queue_.push_back({i, event});
      return;
    }
    working_ = true;
    // Without streaming, the whole response is built at the end. That may take long, so it is not
    // done on the reader thread.
    if (!small || (!stream_ && event.finished())) responder = responder_;
    if (responder) queue_.push_back({i, event});
  }
  if (!responder) {
    Process(i, event);
    return ProcessQueue();
  }
  responder->Defer(CostOf(event) + memory_.bytes(),
                   [self = shared_from_this()] { self->ProcessQueue(); });
}

// Only the thread that set working_ calls this. Processes queued events until there are none.
void PendingResponse::ProcessQueue() {
  while (true) {
    std::vector<News> news;
    {
      std::lock_guard lock(mutex_);
      if (queue_.empty()) {
        working_ = false;
        return;
      }
      news.swap(queue_);
    }
    for (const News& each : news) Process(each.i, each.event);
  }
}

void PendingResponse::Process(size_t i, const GenerationEvent& event) {
  if (open_ == 0) return;
  try {
    memory_.Require(CostOf(event));
    so_far_[i].Add(event);
    Note(event);
    if (event.finished()) Trace(i, event);
    if (events_.on_news) events_.on_news(i, event, so_far_[i]);
    if (!event.finished() || --open_ > 0) return;
    MeasureCopies();
    {
      std::lock_guard lock(mutex_);
      responder_->Note(served_);
      responder_.reset();
    }
    events_.on_end(so_far_);
  } catch (const Error& error) {
    GiveUp(error);
  } catch (const std::bad_alloc&) {
    GiveUp(Error(ErrorKind::kUnavailable, "the server has not enough memory for this response"));
  }
  so_far_.clear();
  memory_.Resize(0);
}

void PendingResponse::Note(const GenerationEvent& event) {
  if (served_.first_token_seconds < 0 && !event.tokens.empty())
    served_.first_token_seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  if (!event.finished()) return;
  served_.prompt += event.prompt_tokens;
  served_.completion += event.completion_tokens;
  served_.cached += event.cached_tokens;
}

std::string PendingResponse::IdOf(size_t i, const GenerationEvent& event) const {
  if (!events_.response_id.empty()) return events_.response_id;
  return names_[i].empty() ? std::to_string(event.id) : names_[i];
}

void PendingResponse::Trace(size_t i, const GenerationEvent& event) {
  if (served_.response_id.empty()) served_.response_id = IdOf(i, event);
  if (!service_.tracer || !responder_) return;
  if (const auto& trace = responder_->trace())
    service_.tracer->AddGeneration(*trace, event, IdOf(i, event));
}

// Adds the longest copy of each prompt to the metrics, unless a copy failed or was aborted.
void PendingResponse::MeasureCopies() const {
  const auto complete = [](const Accumulated& a) {
    return a.last.finish == FinishReason::kStop || a.last.finish == FinishReason::kLength;
  };
  for (size_t p = 0; p < first_copies_.size(); ++p) {
    const size_t end = p + 1 < first_copies_.size() ? first_copies_[p + 1] : so_far_.size();
    const auto copies = std::span(so_far_).subspan(first_copies_[p], end - first_copies_[p]);
    if (!std::ranges::all_of(copies, complete)) continue;
    int32_t most = 0;
    for (const Accumulated& copy : copies) most = std::max(most, copy.last.completion_tokens);
    service_.front.request_metrics().AddCopies(std::ssize(copies), most);
  }
}

void PendingResponse::GiveUp(const Error& error) {
  open_ = 0;
  Abort();
  std::lock_guard lock(mutex_);
  if (!responder_) return;
  const http::Responder responder = *std::exchange(responder_, std::nullopt);
  if (!stream_) return responder.SendError(error);
  const int status = http::StatusOf(error.kind());
  responder.Write(http::SseEvent(http::ErrorBody(status, http::HidePaths(error.what()))));
  responder.EndStream();
}

void PendingResponse::Abort() { service_.front.Abort(ids_); }  // ignores finished generations

}  // namespace switchyard
