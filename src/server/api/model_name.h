// Checks the "model" of a request.
#pragma once

#include "server/api/json_body.h"
#include "server/front/service.h"

namespace switchyard {

// Throws RequestError (404, model_not_found) unless `name` is the served model.
void CheckModelName(const Service& service, const std::string& name);

// Checks the body's "model". Absent, "" or "default" means the served model.
void CheckModel(const Service& service, const Fields& f);

}  // namespace switchyard
