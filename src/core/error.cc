#include "core/error.h"

namespace switchyard {

Error::Error(ErrorKind kind, const std::string& what, const std::string& hint)
    : std::runtime_error(hint.empty() ? what : what + " (" + hint + ")"),
      kind_(kind),
      hint_(hint) {}

Error FormatError(ErrorKind kind, fmt::string_view format, fmt::format_args args) {
  return Error(kind, fmt::vformat(format, args));
}

}  // namespace switchyard
