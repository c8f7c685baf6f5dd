#include "text/tokenizer/base64.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

std::string Encode(std::string_view text) {
  return Base64(std::as_bytes(std::span(text.data(), text.size())));
}

TEST(Base64, IsThatOfTheStandard) {  // examples of RFC 4648, section 10
  EXPECT_EQ(Encode(""), "");
  EXPECT_EQ(Encode("f"), "Zg==");
  EXPECT_EQ(Encode("fo"), "Zm8=");
  EXPECT_EQ(Encode("foo"), "Zm9v");
  EXPECT_EQ(Encode("foob"), "Zm9vYg==");
  EXPECT_EQ(Encode("fooba"), "Zm9vYmE=");
  EXPECT_EQ(Encode("foobar"), "Zm9vYmFy");
  EXPECT_EQ(Encode("\xff\xfe\xfd"), "//79");
}

}  // namespace
}  // namespace switchyard
