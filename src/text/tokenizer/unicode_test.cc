#include "text/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace switchyard {
namespace {

// The examples of the Unicode standard, tables 3-8 to 3-11: one U+FFFD for each maximal subpart.
TEST(Utf8RepairTest, ReplacesMaximalSubparts) {
  const std::pair<std::string, std::string> cases[] = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
       "A",
       "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
       "A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
       "A",
       "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
       "A"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42",
       "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"
       "A\uFFFD\uFFFD"
       "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
       "A",
       "\uFFFD\uFFFD\uFFFD\uFFFD"
       "A"},
      {"\xF0\x9F\x98", "\uFFFD"},
  };
  for (const auto& [bytes, want] : cases) {
    Utf8Repair whole;
    const std::string text = whole.Push(bytes);
    EXPECT_EQ(text + whole.Finish(), want);
    Utf8Repair bytewise;
    std::string joined;
    for (const char byte : bytes) joined += bytewise.Push({&byte, 1});
    EXPECT_EQ(joined + bytewise.Finish(), want);
  }
}

TEST(UnicodeTest, WalksBothWays) {
  const std::string text = "a\u00E9\u4E13\U0001F600";
  size_t i = 0;
  for (const char32_t c : U"a\u00E9\u4E13\U0001F600") {
    if (c != 0) {
      EXPECT_EQ(NextCharacter(text, &i), c);
    }
  }
  EXPECT_EQ(i, text.size());
  EXPECT_EQ(PreviousCharacter(text, &i), U'\U0001F600');
  EXPECT_EQ(PreviousCharacter(text, &i), U'\u4E13');
}

TEST(UnicodeNormalizationTest, Forms) {
  const auto form = [](const char* text, NormalizationForm form) {
    return ToNormalizationForm(MarkedText(std::string(text)), form).text();
  };
  using enum NormalizationForm;
  EXPECT_EQ(form("e\u0323\u0301", kNfc), "\u1EB9\u0301");
  EXPECT_EQ(form("e\u0301\u0323", kNfc), "\u1EB9\u0301");  // reordered before composing
  EXPECT_EQ(form("\u1100\u1161\u11A8", kNfc), "\uAC01");   // Hangul
  EXPECT_EQ(form("\uAC01", kNfd), "\u1100\u1161\u11A8");
  EXPECT_EQ(form("\u0958", kNfc), "\u0915\u093C");  // a composition exclusion
  EXPECT_EQ(form("\u212B\uFB01", kNfc), "\u00C5\uFB01");
  EXPECT_EQ(form("\u212B\uFB01", kNfkd), "A\u030Afi");
  EXPECT_EQ(form("\uFDFA", kNfkc).size(), 33u);
  EXPECT_EQ(form("\u0301e", kNfc), "\u0301e");  // a mark without a base
}

TEST(ByteLevelTest, WritesAnyBytesAsText) {
  std::string bytes;
  for (int b = 0; b < 256; ++b) bytes.push_back(static_cast<char>(b));
  std::string text;
  AppendByteLevel(bytes, &text);
  EXPECT_TRUE(IsValidUtf8(text));
  EXPECT_EQ(BytesOfByteLevel(text), bytes);
  std::string spaced;
  AppendByteLevel(" \u00E9\n", &spaced);
  EXPECT_EQ(spaced, "\u0120\u00C3\u00A9\u010A");
  EXPECT_EQ(BytesOfByteLevel("\u0120\u4E13"), "\u0120\u4E13");  // not in the byte-level alphabet
}

}  // namespace
}  // namespace switchyard
