#include "core/hash.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(HashTest, Fnv1aGivesPublishedValues) {
  EXPECT_EQ(HashOf(""), 0xcbf29ce484222325u);
  EXPECT_EQ(HashOf("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(HashOf("foobar"), 0x85944171f73967e8u);
  Fnv1a parts;
  parts.Add("foo");
  parts.AddBytes("bar", 3);
  EXPECT_EQ(parts.value(), HashOf("foobar"));
}

TEST(HashTest, SplitMix64GivesPublishedValues) {
  // The first numbers of the generator with seed 1234567.
  uint64_t state = 1234567;
  for (const uint64_t want : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u}) {
    EXPECT_EQ(SplitMix64(state), want);
    state += kSplitMixStep;
    EXPECT_EQ(MixBits(state), want);
  }
}

}  // namespace
}  // namespace switchyard
