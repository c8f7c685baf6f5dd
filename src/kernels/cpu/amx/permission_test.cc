#include "kernels/cpu/amx/permission.h"

#include <gmock/gmock.h>

#include <cerrno>

#include "core/error.h"
#include "kernels/ops.h"

namespace switchyard::kernels {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(AmxPermission, WhatIsMissingIsNamed) {
  using cpu::amx::AmxUnavailableReason;
  EXPECT_THAT(AmxUnavailableReason({}), HasSubstr("this CPU has no AMX"));
  EXPECT_THAT(AmxUnavailableReason({.cpu = true}), HasSubstr("does not save"));
  EXPECT_THAT(AmxUnavailableReason({.cpu = true, .saved = true, .refusal = EPERM}),
              HasSubstr("Operation not permitted"));
  EXPECT_THAT(AmxUnavailableReason({.cpu = true, .saved = true}), IsEmpty());
}

TEST(AmxPermission, TilesAreUsedIfAvailableElseForcingThemIsAnError) {
  const Isa best = ActiveIsa();
  EXPECT_EQ(best == Isa::kAmx, HasAmx());
  if (HasAmx()) {
    SelectIsa("amx");
    EXPECT_EQ(ActiveIsa(), Isa::kAmx);
  } else {
    try {
      SelectIsa("amx");
      ADD_FAILURE() << "amx was accepted";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("--cpu-isa amx: "));
      EXPECT_THAT(e.what(), HasSubstr(std::string(Name(best))));
    }
    EXPECT_EQ(ActiveIsa(), best);
  }
  SelectIsa("auto");
}

}  // namespace
}  // namespace switchyard::kernels
