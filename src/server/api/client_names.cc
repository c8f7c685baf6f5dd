#include "server/api/client_names.h"

#include "server/api/request_error.h"

namespace switchyard {
namespace {

std::string NameOf(const ClientNames& names, const std::string& parameter) {
  const auto found = names.find(parameter);
  return found == names.end() ? parameter : found->second;
}

}  // namespace

void RethrowWithClientNames(const ClientNames& names) {
  try {
    throw;
  } catch (const ContextLengthError& e) {
    throw RequestError(ErrorKind::kInvalid, NameOf(names, "prompt"), e.what(),
                       "context_length_exceeded");
  } catch (const ParameterError& e) {
    const std::string name = NameOf(names, e.parameter);
    throw RequestError(ErrorKind::kInvalid, name, name + " " + e.problem);
  }
}

}  // namespace switchyard
