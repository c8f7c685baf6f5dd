#include <gtest/gtest.h>

#include "comm/net/handshake.h"

namespace switchyard {
namespace {

std::string Hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

// Test cases 1, 2 and 6 of RFC 4231: a usual key, a short one, and one longer than a block.
TEST(HmacTest, AgreesWithTheRfc) {
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'),
                           "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(HmacTest, KeysOfTwoPurposesDiffer) {
  EXPECT_EQ(DeriveKey("secret", "a").size(), 32u);
  EXPECT_EQ(DeriveKey("secret", "a"), DeriveKey("secret", "a"));
  EXPECT_NE(DeriveKey("secret", "a"), DeriveKey("secret", "b"));
  EXPECT_NE(DeriveKey("secret", "a"), DeriveKey("secreu", "a"));
}

TEST(HmacTest, DigestsAreEqualInAllBytesOnly) {
  const Digest one = HmacSha256("key", "message");
  for (size_t i = 0; i < one.size(); ++i) {
    Digest other = one;
    other[i] ^= 1;
    EXPECT_FALSE(SameDigest(one, other)) << i;
  }
  EXPECT_TRUE(SameDigest(one, HmacSha256("key", "message")));
}

TEST(HmacTest, RandomNumbersDiffer) {
  Digest one{}, other{};
  FillRandom(one);
  FillRandom(other);
  EXPECT_NE(one, other);
}

}  // namespace
}  // namespace switchyard
