// HTTP client: URLs, connections, requests.
#pragma once

#include <openssl/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "chat/signals.h"
#include "comm/net/file_descriptor.h"

namespace switchyard::chat {

// Address of a server, as the user of `switchyard chat` writes it.

struct ServerUrl {
  bool tls = false;
  std::string host;         // without the brackets of IPv6
  int port = 80;            //
  std::string prefix;       // path before /v1, "" or "/api"
  std::string unix_socket;  // path; if set, host and port are not used

  std::string Host() const;  // value of the Host header
  std::string Text() const;  // for messages
};

// Parses http://HOST[:PORT][/PREFIX], https://..., HOST:PORT, or unix:PATH. The path may end with
// /v1, as base URLs of OpenAI's clients do. Throws Error kInvalid that quotes the text.
ServerUrl ParseServerUrl(std::string_view text);

// A connection to a server: TCP or a Unix socket, with or without TLS.

struct ConnectionOptions {
  std::string ca_file;    // PEM certificates that sign the server's, in addition to the system's
  bool insecure = false;  // the server's certificate is not verified
  std::chrono::milliseconds connect{10'000};
  std::chrono::milliseconds silence{600'000};  // longest wait without a byte
};

// Waits end with Interrupted if the user stops them. Only the look-up of a host's name cannot be
// interrupted. Errors are Error kPeer or kTimeout that name the URL; kInvalid for --cacert.
class Connection {
 public:
  Connection(const ServerUrl& url, const ConnectionOptions& options, Signals& signals);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Write(std::string_view bytes);
  size_t Read(char* bytes, size_t most);  // 0: the server has closed the connection

 private:
  struct FreeTls {
    void operator()(SSL_CTX* context) const;
    void operator()(SSL* ssl) const;
  };

  void Connect();
  void ConnectTcp();
  bool TryConnect(int family, const void* address, size_t size, std::string* failure);
  void StartTls();
  // Waits as `result` of an SSL function requires. Returns false at the end of the stream.
  bool WaitForTls(int result, const char* what);
  void Wait(short events, std::chrono::milliseconds limit, const char* what);
  [[noreturn]] void Fail(const std::string& why, const std::string& hint = {}) const;

  const ServerUrl url_;
  const ConnectionOptions options_;
  Signals& signals_;
  FileDescriptor socket_;
  std::unique_ptr<SSL_CTX, FreeTls> context_;
  std::unique_ptr<SSL, FreeTls> tls_;
};

// HTTP/1.1 requests of a chat.

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
