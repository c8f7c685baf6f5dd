#include "server/http/tls_context.h"

#include <openssl/ssl.h>

#include "core/error.h"

namespace switchyard::http {

using boost::asio::ssl::context;
using boost::system::error_code;

TlsContext::TlsContext(const std::string& certificate_file, const std::string& key_file,
                       const std::string& key_password) {
  error_code ec;
  context_.set_options(context::default_workarounds | context::no_sslv2 | context::no_sslv3 |
                           context::no_tlsv1 | context::no_tlsv1_1,
                       ec);
  SSL_CTX_set_mode(context_.native_handle(),
                   SSL_MODE_RELEASE_BUFFERS);  // saves 34 KB per idle connection
  SSL_CTX_set_options(context_.native_handle(), SSL_OP_NO_RENEGOTIATION);
  context_.set_password_callback(
      [key_password](size_t, context::password_purpose) { return key_password; });
  context_.use_certificate_chain_file(certificate_file, ec);
  if (ec) {
    throw Invalid("--ssl-certfile {}: not a PEM certificate ({})", certificate_file, ec.message());
  }
  context_.use_private_key_file(key_file, context::pem, ec);
  if (ec) {
    throw Invalid("--ssl-keyfile {}: not a PEM private key that matches --ssl-certfile {} ({})",
                  key_file, certificate_file, ec.message());
  }
  if (SSL_CTX_check_private_key(context_.native_handle()) != 1) {
    throw Invalid("--ssl-keyfile {} does not match --ssl-certfile {}", key_file, certificate_file);
  }
}

}  // namespace switchyard::http
