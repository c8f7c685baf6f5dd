#include "server/http/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "core/log.h"
#include "server/http/error_body.h"
#include "server/http/responses.h"

namespace switchyard::http {
namespace {

void Run(const std::function<void()>& callback) {
  try {
    callback();
  } catch (const std::exception& e) {
    LOG_ERROR("http: an OnClose callback threw: {}", e.what());
  }
}

bool HasBody(int status) { return status >= 200 && status != 204 && status != 304; }

bool HasHeader(const Headers& headers, std::string_view name) {
  return std::any_of(headers.begin(), headers.end(),
                     [&](const auto& header) { return header.first == name; });
}

// Maximum number of interim responses per request. Four are enough to detect a disconnect, and some
// clients fail after five.
constexpr int kMaxProbes = 4;
// Responses up to this size, mainly errors, are exempt from the memory limit.
constexpr size_t kUncounted = 4 << 10;

}  // namespace

Exchange::Exchange(Options options, std::function<void()> wake)
    : options_(std::move(options)),
      wake_(std::move(wake)),
      keep_alive_(options_.keep_alive),
      kept_charge_(options_.budget),
      charge_(options_.budget) {}

// Appends the head to pending_. False if the client has disconnected or a response has begun.
bool Exchange::Begin(int status, std::string content_type, Headers extra, const size_t* length) {
  if (gone_ || status_ != 0 || state_ != State::kOpen) return false;
  status_ = status;
  const bool chunked = length == nullptr && options_.chunked;
  if (length == nullptr && !chunked && !options_.head) keep_alive_ = false;
  extra.insert(extra.end(), options_.headers.begin(), options_.headers.end());
  if ((status == 429 || status == 503) && !HasHeader(extra, "Retry-After"))
    extra.emplace_back("Retry-After", "1");
  ResponseHead head{.status = status,
                    .content_type = std::move(content_type),
                    .extra = std::move(extra),
                    .length = {},
                    .chunked = chunked,
                    .keep_alive = keep_alive_};
  if (length != nullptr && HasBody(status)) head.length = *length;
  pending_ += Serialize(head);
  return true;
}

Exchange::Callbacks Exchange::End(State state) {
  state_ = state;
  if (wake_) wake_();
  return std::exchange(on_close_, {});
}

void Exchange::Send(int status, std::string content_type, std::string_view body, Headers extra) {
  Callbacks dropped;
  std::lock_guard lock(mutex_);
  std::string refusal;
  if (status_ == 0 && body.size() > kUncounted && !charge_.Add(body.size())) {
    status = 503;
    content_type = kJson;
    extra.clear();
    refusal = ErrorBody(503, "The memory for responses is exhausted (--http-memory-limit)",
                        "memory_limit");
    body = refusal;
  }
  const size_t length = body.size();
  if (!Begin(status, std::move(content_type), std::move(extra), &length)) return;
  if (!options_.head && HasBody(status)) pending_ += body;
  Keep(body);
  dropped = End(State::kEnded);
}

void Exchange::BeginStream(int status, std::string content_type, Headers extra) {
  const bool event_stream = content_type.starts_with(kEventStream);
  if (event_stream) {
    extra.emplace_back("Cache-Control", "no-cache");
    extra.emplace_back("X-Accel-Buffering", "no");
  }
  std::lock_guard lock(mutex_);
  if (!Begin(status, std::move(content_type), std::move(extra), nullptr)) return;
  streaming_ = true;
  event_stream_ = event_stream;
  if (wake_) wake_();
}

void Exchange::Write(std::string_view chunk) {
  std::lock_guard lock(mutex_);
  // An empty chunk would end the body.
  if (!streaming_ || gone_ || state_ != State::kOpen || options_.head || chunk.empty()) return;
  const bool is_news = pending_.empty();
  const size_t backlog = pending_.size() + in_flight_;
  const bool fits = (backlog == 0 || backlog + chunk.size() <= options_.max_backlog) &&
                    (backlog + chunk.size() <= kUncounted || charge_.Add(chunk.size()));
  if (fits) {
    Keep(chunk);
    AppendChunk(chunk);
  } else {
    Overflow();
  }
  if (wake_ && (is_news || overflowed_)) wake_();
}

void Exchange::AppendChunk(std::string_view chunk) {
  if (options_.chunked) fmt::format_to(std::back_inserter(pending_), "{:x}\r\n", chunk.size());
  pending_ += chunk;
  if (options_.chunked) pending_ += "\r\n";
}

void Exchange::Keep(std::string_view payload) {
  if (kept_truncated_) return;  // without this, a later chunk could follow a gap
  const std::string_view part = payload.substr(0, options_.kept_bytes - kept_.size());
  const bool fits = kept_charge_.Add(part.size());
  if (fits) kept_ += part;
  kept_truncated_ = !fits || part.size() < payload.size();
}

std::string Exchange::TakeKept(bool* truncated) {
  std::lock_guard lock(mutex_);
  *truncated = kept_truncated_;
  kept_charge_.Resize(0);
  return std::exchange(kept_, {});
}

void Exchange::Overflow() {
  overflowed_ = true;
  gone_ = true;
  state_ = State::kCut;
  pending_.clear();
}

void Exchange::EndStream() {
  Callbacks dropped;
  std::lock_guard lock(mutex_);
  if (!streaming_ || gone_ || state_ != State::kOpen) return;
  if (options_.chunked && !options_.head) pending_ += "0\r\n\r\n";
  dropped = End(State::kEnded);
}

bool Exchange::Closed() const {
  std::lock_guard lock(mutex_);
  return gone_;
}

size_t Exchange::Unsent() const {
  std::lock_guard lock(mutex_);
  return pending_.size() + in_flight_;
}

void Exchange::OnClose(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!gone_) {
      if (state_ == State::kOpen) on_close_.push_back(std::move(callback));
      return;
    }
  }
  Run(callback);
}

void Exchange::Abandon() {
  {
    std::lock_guard lock(mutex_);
    if (gone_ || state_ != State::kOpen) return;
  }
  Callbacks dropped;
  if (status() == 0) {
    LOG_ERROR("http: a handler destroyed its Responder without a response");
    Send(500, kJson, ErrorBody(500, "The server produced no response for this request"), {});
    return;
  }
  std::lock_guard lock(mutex_);
  if (state_ == State::kOpen) dropped = End(State::kCut);
}

Exchange::Output Exchange::Take() {
  std::lock_guard lock(mutex_);
  in_flight_ = pending_.size();
  charge_.Resize(std::min(charge_.bytes(), in_flight_));
  return {std::exchange(pending_, {}), state_};
}

void Exchange::Probe() {
  std::lock_guard lock(mutex_);
  if (gone_ || state_ != State::kOpen || !options_.chunked) return;
  if (status_ == 0) {
    if (probes_++ >= kMaxProbes) return;
    pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
  } else if (event_stream_ && pending_.empty() && !options_.head) {
    AppendChunk(SseComment(""));
  }
  if (wake_) wake_();
}

void Exchange::Comment(std::string_view text) {
  std::lock_guard lock(mutex_);
  const bool streams = event_stream_ && !gone_ && state_ == State::kOpen && !options_.head;
  if (!streams || !pending_.empty()) return;
  AppendChunk(SseComment(text));
  if (wake_) wake_();
}

void Exchange::Defer(size_t bytes, std::function<void()> job) {
  const auto lane = WorkerPool::LaneOf(bytes);
  if (options_.workers && options_.workers->Post(lane, job, /*must=*/true)) return;
  job();
}

void Exchange::Note(const ServedTokens& served) {
  std::lock_guard lock(mutex_);
  served_ = served;
}

void Exchange::NoteHint(const std::string& hint) {
  const std::lock_guard lock(mutex_);
  hint_ = hint;
}

std::string Exchange::hint() const {
  const std::lock_guard lock(mutex_);
  return hint_;
}

ServedTokens Exchange::served() const {
  std::lock_guard lock(mutex_);
  return served_;
}

bool Exchange::Overflowed() const {
  std::lock_guard lock(mutex_);
  return overflowed_;
}

void Exchange::DisableKeepAlive() {
  std::lock_guard lock(mutex_);
  if (status_ == 0) keep_alive_ = false;
}

bool Exchange::keep_alive() const {
  std::lock_guard lock(mutex_);
  return keep_alive_;
}

int Exchange::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void Exchange::Close() {
  Callbacks callbacks;
  {
    std::lock_guard lock(mutex_);
    wake_ = nullptr;
    if (state_ == State::kOpen) gone_ = true;
    if (gone_) state_ = State::kCut;
    pending_.clear();
    callbacks = std::exchange(on_close_, {});
  }
  for (const auto& callback : callbacks) Run(callback);
}

}  // namespace switchyard::http
