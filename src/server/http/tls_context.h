// The certificate that the server shows. Internal to this folder.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <string>

namespace switchyard::http {

// Read once, at the start; then used by all I/O threads.
class TlsContext {
 public:
  // PEM files; the certificate's may hold the chain, its own first. Error kInvalid that names the
  // flag where a file cannot be used or the two do not belong together.
  TlsContext(const std::string& certificate_file, const std::string& key_file,
             const std::string& key_password);

  // Asio wants it mutable, to count streams that use it; that is thread-safe.
  boost::asio::ssl::context& context() const { return context_; }

 private:
  mutable boost::asio::ssl::context context_{boost::asio::ssl::context::tls_server};
};

}  // namespace switchyard::http
