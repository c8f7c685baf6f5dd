// TLS certificate and key of the server. Internal to this folder.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <string>

namespace switchyard::http {

// Loaded once at startup; then shared by all I/O threads.
class TlsContext {
 public:
  // PEM files. The certificate file may contain a chain, with the server's certificate first.
  // Throws kInvalid with the flag's name if a file is unusable or the key does not match.
  TlsContext(const std::string& certificate_file, const std::string& key_file,
             const std::string& key_password);

  // Mutable because Asio counts references from streams, in a thread-safe way.
  boost::asio::ssl::context& context() const { return context_; }

 private:
  mutable boost::asio::ssl::context context_{boost::asio::ssl::context::tls_server};
};

}  // namespace switchyard::http
