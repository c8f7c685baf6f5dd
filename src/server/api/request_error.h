// Errors of requests, with the members of OpenAI's error object.
#pragma once

#include <string>
#include <utility>

#include "core/error.h"

namespace switchyard {

// An Error with "param" and "code" of OpenAI's error object: the client's field, and a
// machine-readable error code. Both may be empty.
class RequestError : public Error {
 public:
  RequestError(ErrorKind kind, std::string param, const std::string& message, std::string code = {})
      : Error(kind, message), param_(std::move(param)), code_(std::move(code)) {}
  // `error` with a field. Its hint is kept.
  RequestError(const Error& error, std::string param, std::string code)
      : Error(error), param_(std::move(param)), code_(std::move(code)) {}

  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  std::string param_, code_;
};

// Renames the field of an error. If the field begins with `name`, that part is replaced by
// `client`, in the field and in the message. For example, "response_format.type" becomes
// "text.format.type".
inline RequestError Renamed(const RequestError& error, const std::string& name,
                            const std::string& client) {
  if (!error.param().starts_with(name)) return error;
  std::string message = error.what();
  for (size_t at = 0; (at = message.find(name, at)) != std::string::npos; at += client.size())
    message.replace(at, name.size(), client);
  return {error.kind(), client + error.param().substr(name.size()), message, error.code()};
}

// Example: throw InvalidField("n", "n is {}, want 1 to {}", n, most);
template <typename... Args>
RequestError InvalidField(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kInvalid, std::move(param), fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace switchyard
