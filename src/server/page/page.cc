#include "server/page/page.h"

#include "core/error.h"
#include "server/http/sse.h"
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
  server.Route("GET", "/dashboard/events",
               [feed](const RequestPtr& request, const http::Responder& out) {
                 if (request->method == "HEAD") {
                   out.BeginStream(200, std::string(http::kEventStream));
                   return out.EndStream();
                 }
                 if (!feed->Add(out))
                   throw Error(ErrorKind::kUnavailable,
                               "the page is open too often: /dashboard/events has no free place");
               });
  return feed;
}

}  // namespace switchyard::page
