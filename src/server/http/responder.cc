#include <strings.h>

#include <utility>

#include "server/http/error_body.h"
#include "server/http/exchange.h"
#include "server/http/http_server.h"

namespace switchyard::http {

std::string_view Request::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key.size() == name.size() && strncasecmp(key.data(), name.data(), name.size()) == 0) {
      return value;
    }
  }
  return {};
}

struct Responder::Answer {
  explicit Answer(std::shared_ptr<Exchange> e) : exchange(std::move(e)) {}
  ~Answer() { exchange->Abandon(); }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  std::shared_ptr<Exchange> exchange;
};

Responder::Responder(std::shared_ptr<Exchange> exchange)
    : answer_(std::make_shared<Answer>(std::move(exchange))) {}

void Responder::Send(int status, std::string content_type, std::string_view body,
                     Headers extra) const {
  answer_->exchange->Send(status, std::move(content_type), body, std::move(extra));
}

void Responder::SendError(int status, std::string_view message, std::string_view code,
                          std::string_view param) const {
  Send(status, kJson, ErrorBody(status, HidePaths(message), code, param));
}

void Responder::SendError(const Error& error) const {
  NoteHint(error.hint());
  SendError(StatusOf(error.kind()), error.what());
}

void Responder::NoteHint(const std::string& hint) const { answer_->exchange->NoteHint(hint); }

void Responder::BeginStream(int status, std::string content_type, Headers extra) const {
  answer_->exchange->BeginStream(status, std::move(content_type), std::move(extra));
}

void Responder::Write(std::string_view chunk) const { answer_->exchange->Write(chunk); }

void Responder::EndStream() const { answer_->exchange->EndStream(); }

bool Responder::Closed() const { return answer_->exchange->Closed(); }

size_t Responder::Unsent() const { return answer_->exchange->Unsent(); }

void Responder::Defer(size_t bytes, std::function<void()> job) const {
  answer_->exchange->Defer(bytes, std::move(job));
}

const std::shared_ptr<MemoryBudget>& Responder::budget() const {
  return answer_->exchange->budget();
}

const std::shared_ptr<const TraceContext>& Responder::trace() const {
  return answer_->exchange->trace();
}

void Responder::Note(const ServedTokens& served) const { answer_->exchange->Note(served); }

void Responder::OnClose(std::function<void()> callback) const {
  answer_->exchange->OnClose(std::move(callback));
}

}  // namespace switchyard::http
