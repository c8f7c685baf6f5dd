#include "core/error.h"
#include "server/api/json_body.h"
#include "server/http/exchange.h"
#include "server/http/memory_budget.h"
#include "server/http/router.h"
#include "server/offline/service.h"

namespace switchyard::offline {
namespace {

ErrorKind KindOfStatus(int status) {
  switch (status) {
    case 401:
      return ErrorKind::kUnauthorized;
    case 404:
      return ErrorKind::kNotFound;
    case 413:
      return ErrorKind::kTooLarge;
    case 429:
      return ErrorKind::kBusy;
    case 503:
      return ErrorKind::kUnavailable;
    default:
      return status < 500 ? ErrorKind::kInvalid : ErrorKind::kPeer;
  }
}

// The message of a response's body ends with the hint of the Error that it reports.
Error WithHint(ErrorKind kind, const std::string& message, const std::string& hint) {
  const std::string end = " (" + hint + ")";
  if (hint.empty() || !message.ends_with(end)) return {kind, message};
  return {kind, message.substr(0, message.size() - end.size()), hint};
}

// The error of a response's body, which http::ErrorBody has written.
RequestError ErrorOf(int status, const std::string& body, const std::string& hint) {
  const ErrorKind kind = KindOfStatus(status);
  try {
    const Json parsed = ParseBody(body);
    const auto error = parsed.find("error");
    if (error != parsed.end() && error->is_object()) {
      const Fields f(*error);
      return {WithHint(kind, f.String("message", body), hint), f.String("param", ""),
              f.String("code", "")};
    }
  } catch (const Error&) {  // another format
  }
  return {kind, "", body};
}

class OpenRequest : public RouteCall {
 public:
  OpenRequest(std::shared_ptr<Engine::Impl> engine, std::shared_ptr<Notifier> notifier)
      : engine_(std::move(engine)),
        news_(std::make_shared<News>(std::move(notifier))),
        exchange_(std::make_shared<http::Exchange>(
            http::Exchange::Options{.chunked = false, .keep_alive = false},
            [news = news_] { news->Set(); })) {}
  ~OpenRequest() override { Abort(); }

  void Run(const http::Handler& handler, std::shared_ptr<const http::Request> request) {
    const http::Responder responder(exchange_);
    try {
      handler(std::move(request), responder);
    } catch (...) {
      exchange_->Close();  // so that the missing response is not an error of the handler
      throw;
    }
  }

  uint64_t number() const override { return news_->number(); }
  bool Wait(std::chrono::milliseconds timeout) override { return news_->Wait(timeout); }
  bool HasNews() const override { return news_->Has(); }
  bool done() const override { return done_; }
  void Abort() override {
    done_ = true;
    exchange_->Close();
  }

  std::string Take() override;

 private:
  const std::shared_ptr<Engine::Impl> engine_;  // owns what handlers refer to
  const std::shared_ptr<News> news_;
  const std::shared_ptr<http::Exchange> exchange_;
  std::string received_;  // not returned yet; at first with the head
  bool in_body_ = false, events_ = false, done_ = false;
};

std::string OpenRequest::Take() {
  if (done_) return {};
  news_->Clear();
  const http::Exchange::Output output = exchange_->Take();
  received_ += output.bytes;
  if (!in_body_) {
    const size_t end = received_.find("\r\n\r\n");
    if (end == std::string::npos) return {};
    const std::string head = received_.substr(0, end);
    events_ = head.find("text/event-stream") != std::string::npos;
    received_.erase(0, end + 4);
    in_body_ = true;
  }
  done_ = output.state != http::Exchange::State::kOpen;
  if (done_ && exchange_->status() >= 400)
    throw ErrorOf(exchange_->status(), received_, exchange_->hint());
  if (output.state == http::Exchange::State::kCut)
    throw Error(ErrorKind::kPeer, "the response was cut off");
  if (!done_ && !events_) return {};
  return std::exchange(received_, {});
}

std::shared_ptr<const http::Request> MakeRequest(const std::string& method, const std::string& path,
                                                 const std::string& body,
                                                 const http::Router::Match& match) {
  auto request = std::make_shared<http::Request>();
  request->method = method;
  request->path = path;
  request->params = match.params;
  request->headers = {{"Content-Type", "application/json"}};
  request->body = body;
  request->peer = "process";
  request->id = "process";
  request->memory = std::make_shared<http::MemoryCharge>();  // without a limit
  return request;
}

}  // namespace

std::unique_ptr<RouteCall> StartRequest(std::shared_ptr<Engine::Impl> engine,
                                        const std::string& method, const std::string& path,
                                        const std::string& body,
                                        std::shared_ptr<Notifier> notifier) {
  const http::Router::Match match = engine->routes.router().Find(method, path);
  if (match.handler == nullptr) {
    if (match.allow.empty()) throw NotFound("{} {}: there is no such route", method, path);
    throw Invalid("{} {}: want one of the methods {}", method, path, match.allow);
  }
  auto call = std::make_unique<OpenRequest>(std::move(engine), std::move(notifier));
  call->Run(*match.handler, MakeRequest(method, path, body, match));
  return call;
}

}  // namespace switchyard::offline
