// The one exception type for what users, files, requests and peers get wrong.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "core/format.h"

namespace switchyard {

// What is at fault; a server maps it to an HTTP status, `main` to exit code 2.
enum class ErrorKind {
  kInvalid,       // malformed or contradictory input: flags, files, request bodies        -> 400
  kNotFound,      // a file, tensor, model or endpoint that is not there                   -> 404
  kUnauthorized,  // a key is missing or wrong                                             -> 401
  kTooLarge,      // over a stated limit                                                   -> 413
  kBusy,          // the queue is full: try again later                                    -> 429
  kUnavailable,   // the server is loading, draining or has lost its ranks              -> 503
  kTimeout,       // a peer did not answer in time; the message says who waited for whom   -> 500
  kPeer,          // a rank or the front died                                              -> 500
  kResource,      // not enough memory, port in use, no file handles                       -> 500
};

// Carries what is wrong, where (file, key, flag, rank) and what to do about it. Thrown, never
// aborted on: bugs are CHECKs (core/check.h). Value type; safe to throw across threads through
// std::exception_ptr.
class Error : public std::runtime_error {
 public:
  // `what`: one sentence that names the file, key or flag. `hint`: what to do, may be empty.
  Error(ErrorKind kind, const std::string& what, const std::string& hint = {});

  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Not a template: formats and constructs in error.cc, not in each object that throws.
Error FormatError(ErrorKind kind, fmt::string_view format, fmt::format_args args);

// throw Invalid("config.json: num_experts is {}, want 1 to {}", n, limit);
template <typename... Args>
Error Invalid(fmt::format_string<Args...> format, Args&&... args) {
  return FormatError(ErrorKind::kInvalid, format, fmt::make_format_args(args...));
}

template <typename... Args>
Error NotFound(fmt::format_string<Args...> format, Args&&... args) {
  return FormatError(ErrorKind::kNotFound, format, fmt::make_format_args(args...));
}

template <typename... Args>
Error Resource(fmt::format_string<Args...> format, Args&&... args) {
  return FormatError(ErrorKind::kResource, format, fmt::make_format_args(args...));
}

}  // namespace switchyard
