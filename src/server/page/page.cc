#include "server/page/page.h"

#include <exception>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "server/http/responses.h"
#include "server/page/assets.h"
#include "server/page/snapshot.h"

namespace switchyard::page {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;

std::string PathOf(const Asset& asset) {
  return asset.name == "index.html" ? "/" : "/page/" + std::string(asset.name);
}

// The page loads files of this server only, and runs no script that is part of a document.
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void SendAsset(const Asset& asset, const http::Request& request, const http::Responder& out) {
  http::Headers headers = {{"ETag", std::string(asset.etag)},
                           {"Cache-Control", "no-cache"},
                           {"Content-Security-Policy", kPolicy},
                           {"X-Content-Type-Options", "nosniff"},
                           {"Referrer-Policy", "no-referrer"}};
  if (request.Header("If-None-Match") == asset.etag)
    return out.Send(304, "", "", std::move(headers));
  out.Send(200, std::string(asset.content_type), asset.text, std::move(headers));
}

}  // namespace

std::vector<std::string> Paths() {
  std::vector<std::string> paths;
  for (const Asset& asset : Assets()) paths.push_back(PathOf(asset));
  return paths;
}

std::shared_ptr<Feed> Register(http::Server& server, Service& service, Feed::Options options) {
  for (const Asset& asset : Assets())
    server.Route("GET", PathOf(asset),
                 [&asset](const RequestPtr& request, const http::Responder& out) {
                   SendAsset(asset, *request, out);
                 });
  const auto snapshots = std::make_shared<Snapshots>(service);
  const auto feed =
      std::make_shared<Feed>([snapshots](bool whole) { return snapshots->Make(whole); }, options);
  server.Route(
      "GET", "/dashboard/events", [feed](const RequestPtr& request, const http::Responder& out) {
        if (request->method == "HEAD") {
          out.BeginStream(200, std::string(http::kEventStream));
          return out.EndStream();
        }
        if (!feed->Add(out))
          throw Error(ErrorKind::kUnavailable,
                      "too many connections to /dashboard/events: close other windows of the page");
      });
  return feed;
}

namespace {

// A listener with more unsent bytes is behind. The head of its response may still be unsent.
constexpr size_t kBehind = 4 << 10;

}  // namespace

Feed::Feed(Make make, Options options)
    : make_(std::move(make)), options_(options), thread_([this] { Run(); }) {}

Feed::~Feed() { Stop(); }

bool Feed::Add(const http::Responder& listener) {
  std::lock_guard lock(mutex_);
  DropClosed();
  if (stopping_ || listeners_.size() >= options_.max_listeners) return false;
  listener.BeginStream(200, std::string(http::kEventStream));
  listeners_.push_back({listener});
  newcomers_ = true;
  wake_.notify_all();
  return true;
}

void Feed::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const Listener& listener : listeners_) listener.responder.EndStream();
    listeners_.clear();
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

size_t Feed::listeners() const {
  std::lock_guard lock(mutex_);
  return listeners_.size();
}

int64_t Feed::snapshots() const {
  std::lock_guard lock(mutex_);
  return snapshots_;
}

void Feed::DropClosed() {
  std::erase_if(listeners_, [](const Listener& each) { return each.responder.Closed(); });
}

void Feed::Send(const std::string& snapshot) {
  const std::string event = http::SseEvent(snapshot);
  for (Listener& each : listeners_) {
    if (each.responder.Unsent() > kBehind) {
      ++each.skipped;
      continue;
    }
    each.skipped = 0;
    each.responder.Write(event);
  }
  // Without its last Responder, a stream is cut off.
  std::erase_if(listeners_,
                [&](const Listener& each) { return each.skipped >= options_.max_skipped; });
}

void Feed::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !listeners_.empty(); });
    if (stopping_) return;
    DropClosed();
    if (listeners_.empty()) continue;
    const bool whole = std::exchange(newcomers_, false);
    lock.unlock();
    std::string snapshot;
    try {
      snapshot = make_(whole);
    } catch (const std::exception& e) {
      LOG_WARNING("/dashboard/events: no snapshot: {}", e.what());
    }
    lock.lock();
    if (whole && snapshot.empty()) newcomers_ = true;
    if (!snapshot.empty()) {
      ++snapshots_;
      Send(snapshot);
    }
    // The interval also limits the rate if listeners come and go.
    wake_.wait_for(lock, options_.interval, [&] { return stopping_; });
  }
}

}  // namespace switchyard::page
