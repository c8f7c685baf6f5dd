// HTTP/1.1 requests of a chat.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "chat/connection.h"

namespace switchyard::chat {

// Each request has its own connection, so an interrupted response leaves nothing behind, and the
// server aborts its generation. Use on one thread.
class HttpClient {
 public:
  struct Response {
    int status = 0;
    std::string body;  // without the parts that `part` received
  };

  // `key`: sent as a Bearer token; "": none.
  HttpClient(ServerUrl url, std::string key, ConnectionOptions options, Signals& signals)
      : url_(std::move(url)),
        key_(std::move(key)),
        options_(std::move(options)),
        signals_(signals) {}

  const ServerUrl& url() const { return url_; }

  // Throws the errors of Connection, and kPeer if the response is not HTTP, is cut off, or is
  // larger than 64 MiB. If the status is 200, `part` receives the body as it arrives.
  Response Get(std::string_view path);
  Response Post(std::string_view path, std::string_view body,
                const std::function<void(std::string_view)>& part);

 private:
  Response Exchange(const std::string& request, const std::function<void(std::string_view)>& part);
  std::string Head(std::string_view method, std::string_view path) const;

  const ServerUrl url_;
  const std::string key_;
  const ConnectionOptions options_;
  Signals& signals_;
};

}  // namespace switchyard::chat
