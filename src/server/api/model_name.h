// The "model" of a request.
#pragma once

#include "server/api/json_body.h"
#include "server/front/service.h"

namespace switchyard {

// RequestError, 404 model_not_found, where `name` is no model that is served here.
void CheckModelName(const Service& service, const std::string& name);

// The same for the body's "model". Without one, or with "default", it means the served model.
void CheckModel(const Service& service, const Fields& f);

}  // namespace switchyard
