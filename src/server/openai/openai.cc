#include "server/openai/openai.h"

#include "server/api/guarded.h"
#include "server/api/request_fields.h"
#include "server/http/error_body.h"
#include "server/openai/common.h"

namespace switchyard::openai {
namespace {

Json ModelCard(const Service& service, int64_t created) {
  return {{"id", service.model.name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "switchyard"},
          {"root", service.model.name},
          {"parent", nullptr},  // only adapters have a parent model
          {"max_model_len", service.plan.context_length}};
}

}  // namespace

void Register(http::Server& server, Service& service) {
  using RequestPtr = std::shared_ptr<const http::Request>;
  const auto route = [&](const char* method, const char* path, http::Handler handler) {
    server.Route(method, path, Guarded(service, std::move(handler)));
  };
  route("POST", "/v1/completions", [&](const RequestPtr& r, const http::Responder& out) {
    HandleCompletions(service, *r, out);
  });
  route("POST", "/v1/chat/completions",
        [&](const RequestPtr& r, const http::Responder& out) { HandleChat(service, *r, out); });
  RegisterResponses(server, service);
  const int64_t created = Now();
  for (const char* path : {"/v1/models", "/v1/models/"}) {
    route("GET", path, [&service, created](const RequestPtr&, const http::Responder& out) {
      out.Send(200, http::kJson,
               Dump({{"object", "list"}, {"data", Json::array({ModelCard(service, created)})}}));
    });
  }
  route("GET", "/v1/models/{id}",
        [&service, created](const RequestPtr& r, const http::Responder& out) {
          const std::string& id = r->params.at("id");
          CheckModelName(service, id);
          out.Send(200, http::kJson, Dump(ModelCard(service, created)));
        });
}

}  // namespace switchyard::openai
