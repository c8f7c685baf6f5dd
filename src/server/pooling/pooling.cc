#include "server/pooling/pooling.h"

#include <memory>

#include "server/api/guarded.h"
#include "server/api/json_body.h"
#include "server/pooling/classify.h"
#include "server/pooling/embeddings.h"
#include "server/pooling/rerank.h"
#include "server/pooling/score.h"

namespace switchyard::pooling {
namespace {

void HandleEncodeBody(Service& service, const http::Request& request,
                      const http::Responder& responder) {
  HandleEncode(service, ParseBody(request), responder);
}

}  // namespace

void Register(http::Server& server, Service& service) {
  using Handle = void (*)(Service&, const http::Request&, const http::Responder&);
  constexpr std::pair<const char*, Handle> kRoutes[] = {{"/v1/embeddings", HandleEmbeddings},
                                                        {"/encode", HandleEncodeBody},
                                                        {"/score", HandleScore},
                                                        {"/v1/score", HandleScore},
                                                        {"/rerank", HandleRerank},
                                                        {"/v1/rerank", HandleRerank},
                                                        {"/v2/rerank", HandleRerank},
                                                        {"/classify", HandleClassify},
                                                        {"/v1/classify", HandleClassify}};
  for (const auto& [path, handle] : kRoutes) {
    server.Route("POST", path,
                 Guarded(service, [&service, handle](std::shared_ptr<const http::Request> request,
                                                     const http::Responder& responder) {
                   handle(service, *request, responder);
                 }));
  }
}

}  // namespace switchyard::pooling
