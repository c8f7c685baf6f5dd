// A connection to a server: TCP or a Unix socket, with or without TLS.
#pragma once

#include <openssl/types.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "chat/server_url.h"
#include "chat/signals.h"
#include "comm/net/file_descriptor.h"

namespace switchyard::chat {

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

}  // namespace switchyard::chat
