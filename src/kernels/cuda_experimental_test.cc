#include "kernels/cuda_experimental.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/testing.h"

namespace switchyard::kernels {
namespace {

TEST(CudaExperimental, NamesTurnOnWhatTheySay) {
  EXPECT_FALSE(ParseCudaExperimental("").fused_decode);
  EXPECT_TRUE(ParseCudaExperimental("fused-decode").fused_decode);
  EXPECT_FALSE(ParseCudaExperimental("fused-decode").w4a16);
  EXPECT_TRUE(ParseCudaExperimental("fused-decode,fused-decode").fused_decode);
  EXPECT_TRUE(ParseCudaExperimental("w4a16").w4a16);
  EXPECT_FALSE(ParseCudaExperimental("w4a16").fused_decode);
  const CudaExperimental both = ParseCudaExperimental("w4a16,fused-decode");
  EXPECT_TRUE(both.w4a16 && both.fused_decode);
}

TEST(CudaExperimental, OtherNamesAreRefused) {
  for (const char* names :
       {"fused", "fused-decode,", ",", "fused-decode, fused-decode", "w4a16x", "w4a16,"})
    EXPECT_THAT(ErrorOf([&] { ParseCudaExperimental(names); }),
                testing::HasSubstr("want fused-decode or w4a16"))
        << names;
}

}  // namespace
}  // namespace switchyard::kernels
