#include "server/pooling/pooling.h"

#include <algorithm>
#include <memory>

#include "server/api/guarded.h"
#include "server/api/json_body.h"
#include "server/http/error_body.h"
#include "server/pooling/batch.h"
#include "server/pooling/vectors.h"

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

void HandleClassify(Service& service, const http::Request& request,
                    const http::Responder& responder) {
  const Json body = ParseBody(request);
  const Fields f(body);
  if (f.Has("text") || f.Has("input_ids")) return HandleEncode(service, body, responder);
  CheckRequest(service, f, RequestKind::kClassify, RequiredOutput::kClasses);
  const bool activate = f.Bool("use_activation", f.Bool("activation", true));
  Batch batch = NewBatch(f, "classify-");
  AddPrompts(service, f, "input", ParsePrompts(service, f, "input"), &batch);
  Run(service, std::move(batch), responder,
      [activate, &service](const Batch& b, const std::vector<Accumulated>& all) {
        const PoolingConfig& config = *service.model.config.pooling;
        std::string text =
            fmt::format(R"({{"id":{},"object":"list","created":{},"model":{},"data":[)", Dump(b.id),
                        b.created, Dump(service.model.name));
        for (size_t i = 0; i < all.size(); ++i) {
          std::vector<float> scores = all[i].pooled;
          const auto best = std::ranges::max_element(scores) - scores.begin();
          if (activate) Activate(config, scores);
          text += fmt::format(R"({}{{"index":{},"label":{},"probs":{},"num_classes":{}}})",
                              i > 0 ? "," : "", i, Dump(config.labels[best]), JsonList(scores),
                              scores.size());
        }
        return text + R"(],"usage":)" + Dump(Usage(all)) + '}';
      });
}

}  // namespace switchyard::pooling
