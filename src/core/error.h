// The exception type, with a few subclasses, for errors that users, files, requests and peers
// cause.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "core/format.h"

namespace switchyard {

// Error category. The server maps it to an HTTP status, `main` to exit code 2.
enum class ErrorKind {
  kInvalid,       // malformed or contradictory input: flags, files, request bodies        -> 400
  kNotFound,      // a file, tensor, model or endpoint does not exist                         -> 404
  kUnauthorized,  // a key is missing or wrong                                             -> 401
  kTooLarge,      // exceeds a stated limit                                                   -> 413
  kBusy,          // the queue is full: try again later                                    -> 429
  kUnavailable,   // the server is loading, draining or has lost its ranks              -> 503
  kTimeout,       // no answer from a peer before the deadline; the message names both sides  -> 500
  kPeer,          // a rank or the front died                                              -> 500
  kResource,      // not enough memory, port in use, no file handles                       -> 500
};

// The message states what is wrong, where (file, key, flag, rank) and how to fix it. Not used for
// bugs: those fail a CHECK (core/check.h). A value type; safe to pass between threads through
// std::exception_ptr.
class Error : public std::runtime_error {
 public:
  // `what`: one sentence that names the file, key or flag. `hint`: how to fix it, may be empty.
  Error(ErrorKind kind, const std::string& what, const std::string& hint = {});

  ErrorKind kind() const { return kind_; }
  // The hint alone; what() contains it too.
  const std::string& hint() const { return hint_; }

 private:
  ErrorKind kind_;
  std::string hint_;
};

// Not a template, so formatting and construction are compiled once, in error.cc, instead of in each
// object file that throws.
Error FormatError(ErrorKind kind, fmt::string_view format, fmt::format_args args);

// Example: throw Invalid("config.json: num_experts is {}, want 1 to {}", n, limit);
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
