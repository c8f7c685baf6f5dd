#include "kernels/cuda_experimental.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/testing.h"

namespace switchyard::kernels {
namespace {

TEST(CudaExperimental, NamesTurnOnWhatTheySay) {
  EXPECT_FALSE(ParseCudaExperimental("").fused_decode);
  EXPECT_TRUE(ParseCudaExperimental("fused-decode").fused_decode);
  EXPECT_TRUE(ParseCudaExperimental("fused-decode,fused-decode").fused_decode);
}

TEST(CudaExperimental, OtherNamesAreRefused) {
  for (const char* names : {"fused", "fused-decode,", ",", "fused-decode, fused-decode"})
    EXPECT_THAT(ErrorOf([&] { ParseCudaExperimental(names); }),
                testing::HasSubstr("want fused-decode"))
        << names;
}

}  // namespace
}  // namespace switchyard::kernels
