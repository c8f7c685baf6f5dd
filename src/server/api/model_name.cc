#include "server/api/model_name.h"

namespace switchyard {

void CheckModelName(const Service& service, const std::string& name) {
  if (name == service.model.name) return;
  throw RequestError(ErrorKind::kNotFound, "model",
                     fmt::format("The model `{}` does not exist.", name), "model_not_found");
}

void CheckModel(const Service& service, const Fields& f) {
  const std::string name = f.String("model", "");
  if (!name.empty() && name != "default") CheckModelName(service, name);
}

}  // namespace switchyard
