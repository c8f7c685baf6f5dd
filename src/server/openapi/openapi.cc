#include "server/openapi/openapi.h"

#include <memory>
#include <mutex>
#include <string>

#include "server/api/guarded.h"
#include "server/http/error_body.h"

namespace switchyard::openapi {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;

// The text of the document. It is created for the first request, because all routes are registered
// by then.
class DocumentText {
 public:
  DocumentText(const http::Server& server, const Service& service, bool with_keys)
      : server_(server), service_(service), with_keys_(with_keys) {}

  const std::string& Get() {
    std::call_once(made_,
                   [this] { text_ = Dump(Document(service_, server_.router(), with_keys_)); });
    return text_;
  }

 private:
  const http::Server& server_;
  const Service& service_;
  const bool with_keys_;
  std::once_flag made_;
  std::string text_;
};

}  // namespace

void Register(http::Server& server, const Service& service) {
  const bool with_keys = !ReadApiKeys(service.args.http).empty();
  const auto document = std::make_shared<DocumentText>(server, service, with_keys);
  server.Route("GET", "/openapi.json",
               Guarded(service, [document](const RequestPtr&, const http::Responder& out) {
                 out.Send(200, http::kJson, document->Get());
               }));
  server.Route("GET", "/docs", [](const RequestPtr&, const http::Responder& out) {
    // The page needs only its own script and style, and openapi.json of this server.
    out.Send(200, "text/html; charset=utf-8", DocsPage(),
             {{"Content-Security-Policy",
               "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; "
               "style-src 'unsafe-inline'"}});
  });
}

}  // namespace switchyard::openapi
