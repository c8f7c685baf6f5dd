// For the tests of every module.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/error.h"

namespace switchyard {

// What the Error says that `body` throws, which has to be of `kind`; "no error" where none comes.
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
