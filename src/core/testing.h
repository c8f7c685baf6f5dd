// Test helpers for every module.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/error.h"

namespace switchyard {

// Returns the message of the Error that `body` throws and checks its kind; "no error" if it throws
// none.
inline std::string ErrorOf(const std::function<void()>& body,
                           ErrorKind kind = ErrorKind::kInvalid) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace switchyard
