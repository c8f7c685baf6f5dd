// What is wrong with a request, as OpenAI's clients read it.
#pragma once

#include <string>
#include <utility>

#include "core/error.h"

namespace switchyard {

// An Error with the "param" and "code" of an error body: the field that the client sent, and a code
// that programs act on. Both may be empty.
class RequestError : public Error {
 public:
  RequestError(ErrorKind kind, std::string param, const std::string& message, std::string code = {})
      : Error(kind, message), param_(std::move(param)), code_(std::move(code)) {}

  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  std::string param_, code_;
};

// throw InvalidField("n", "n is {}, want 1 to {}", n, most);
template <typename... Args>
RequestError InvalidField(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kInvalid, std::move(param), fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace switchyard
