#include "server/http/exchange.h"

#include <fmt/format.h>

#include <exception>
#include <iterator>
#include <utility>

#include "core/log.h"
#include "server/http/error_body.h"
#include "server/http/response_head.h"
#include "server/http/sse.h"

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

}  // namespace

Exchange::Exchange(Options options, std::function<void()> wake)
    : options_(options), wake_(std::move(wake)), keep_alive_(options.keep_alive) {}

// Puts the head into pending_. False if the client is gone or an answer was begun already.
bool Exchange::Begin(int status, std::string content_type, Headers extra, const size_t* length) {
  if (gone_ || status_ != 0 || state_ != State::kOpen) return false;
  status_ = status;
  const bool chunked = length == nullptr && options_.chunked;
  if (length == nullptr && !chunked && !options_.head) keep_alive_ = false;
  ResponseHead head{.status = status,
                    .content_type = std::move(content_type),
                    .extra = std::move(extra),
                    .length = {},
                    .chunked = chunked,
                    .keep_alive = keep_alive_,
                    .allow_cors = options_.allow_cors};
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
  const size_t length = body.size();
  if (!Begin(status, std::move(content_type), std::move(extra), &length)) return;
  if (!options_.head && HasBody(status)) pending_ += body;
  dropped = End(State::kEnded);
}

void Exchange::BeginStream(int status, std::string content_type, Headers extra) {
  if (content_type.starts_with(kEventStream)) {
    extra.emplace_back("Cache-Control", "no-cache");
    extra.emplace_back("X-Accel-Buffering", "no");
  }
  std::lock_guard lock(mutex_);
  if (!Begin(status, std::move(content_type), std::move(extra), nullptr)) return;
  streaming_ = true;
  if (wake_) wake_();
}

void Exchange::Write(std::string_view chunk) {
  std::lock_guard lock(mutex_);
  // An empty chunk would end the body.
  if (!streaming_ || gone_ || state_ != State::kOpen || options_.head || chunk.empty()) return;
  const bool is_news = pending_.empty();
  const size_t backlog = pending_.size() + in_flight_;
  if (backlog > 0 && backlog + chunk.size() > options_.max_backlog) {
    overflowed_ = true;
    gone_ = true;
    state_ = State::kCut;
    pending_.clear();
  } else if (options_.chunked) {
    fmt::format_to(std::back_inserter(pending_), "{:x}\r\n", chunk.size());
    pending_ += chunk;
    pending_ += "\r\n";
  } else {
    pending_ += chunk;
  }
  if (wake_ && (is_news || overflowed_)) wake_();
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
    LOG_ERROR("http: a handler dropped a request without answering it");
    Send(500, kJson, ErrorBody(500, "The server gave no answer to this request"), {});
    return;
  }
  std::lock_guard lock(mutex_);
  if (state_ == State::kOpen) dropped = End(State::kCut);
}

Exchange::Output Exchange::Take() {
  std::lock_guard lock(mutex_);
  in_flight_ = pending_.size();
  return {std::exchange(pending_, {}), state_};
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
