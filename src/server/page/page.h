// The web page: chat, and the live view of experts, batches and latencies.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/front/service.h"
#include "server/http/http_server.h"
#include "server/page/feed.h"

namespace switchyard::page {

// Paths of the page and its files. They contain no data of the server, so they need no API key.
std::vector<std::string> Paths();

// Adds the routes of the page: "/" and its files, and GET /dashboard/events, a stream of snapshots.
// Call Stop() of the result before the server's Stop, and before the end of the ranks.
std::shared_ptr<Feed> Register(http::Server& server, Service& service,
                               Feed::Options options = Feed::Options());

}  // namespace switchyard::page
