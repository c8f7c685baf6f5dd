#include "server/endpoints.h"

#include "server/anthropic/messages.h"
#include "server/native/native.h"
#include "server/openai/openai.h"
#include "server/pooling/pooling.h"

namespace switchyard {

void RegisterEndpoints(http::Server& server, Service& service) {
  openai::Register(server, service);
  anthropic::Register(server, service);
  native::Register(server, service);
  pooling::Register(server, service);
}

}  // namespace switchyard
