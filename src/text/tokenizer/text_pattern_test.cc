#include "text/tokenizer/text_pattern.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

using Strings = std::vector<std::string>;

Strings Found(std::string_view regex, std::string_view text) {
  Strings out;
  for (const TextRange& match : TextPattern::Regex(regex, "test").FindAll(text)) {
    out.emplace_back(text.substr(match.begin, match.size()));
  }
  return out;
}

TEST(TextPatternTest, Literal) {
  const auto matches = TextPattern::Literal("a.a", "test").FindAll("a.a.a aba a.a");
  EXPECT_EQ(matches, (std::vector<TextRange>{{0, 3}, {10, 13}}));
}

TEST(TextPatternTest, EmptyMatchesDoNotFollowAMatch) {
  const auto matches = TextPattern::Regex("a*", "test").FindAll("aab");
  EXPECT_EQ(matches, (std::vector<TextRange>{{0, 2}, {3, 3}}));
  EXPECT_EQ(TextPattern::Regex("x*", "test").FindAll("\u00E9").size(),
            2u);  // matches before and after the character, not inside
}

// Each line tests a difference between Oniguruma and PCRE2.
TEST(RegexSyntaxTest, MeansWhatOnigurumaMeans) {
  EXPECT_EQ(Found(R"(\s)", "a\u180Eb\u0085\u00A0"), (Strings{"\u0085", "\u00A0"}));
  EXPECT_EQ(Found(R"([^\S ]+)", " \u3000\n"), Strings{"\u3000\n"});
  EXPECT_EQ(Found(R"(\w+)", "e\u0301\u203Fa\u2160 \u00B2"), Strings{"e\u0301\u203Fa\u2160"});
  EXPECT_EQ(Found(R"([^\W\d_]+)", "ab1_c"), (Strings{"ab", "c"}));
  EXPECT_EQ(Found(R"(\bt)", "\u00B2t"), Strings{"t"});
  EXPECT_EQ(Found(R"(\h+)", "xBEEF "), Strings{"BEEF"});
  EXPECT_EQ(Found(R"(\v)", "\n\v"), Strings{"\v"});
  EXPECT_EQ(Found(R"(\u0041)", "A"), Strings{"A"});
  EXPECT_EQ(Found(R"(\p{Han}+)", "\u4E13\u3001"),
            Strings{"\u4E13"});  // U+3001 is Han only by script extensions
  EXPECT_EQ(Found(R"(\p{Letter}+|\p{^Letter}+)", "ab12"), (Strings{"ab", "12"}));
  EXPECT_EQ(Found(R"([[:punct:]]|\p{Punct})", "+a-"), (Strings{"+", "-"}));
  EXPECT_EQ(Found(R"([\p{L}&&[^\p{Han}]]+)", "ab\u4E13c"), (Strings{"ab", "c"}));
  EXPECT_EQ(Found(R"([^a-z&&[^b]]+)", "abz1"), (Strings{"b", "1"}));
  EXPECT_EQ(Found(R"([a[bc]]+)", "xabcx"), Strings{"abc"});
  EXPECT_EQ(Found(R"([[a]^b]+)", "a^bx"), Strings{"a^b"});
  EXPECT_EQ(Found(R"(\d{1,3}+)", "12345"), Strings{"12345"});
  EXPECT_EQ(Found(R"(x{,2}y)", "xxy"), Strings{"xxy"});
  EXPECT_EQ(Found(R"(a{2}?b)", "b"), Strings{"b"});
  EXPECT_EQ(Found(R"(a(?i)b|c)", "aB ac c"), (Strings{"aB", "ac"}));
  EXPECT_EQ(Found(R"((?m:a.)|^b$)", "a\n\nb\nc"), (Strings{"a\n", "b"}));
  EXPECT_EQ(Found(R"((?i:'s))", "'\u017F"), Strings{"'\u017F"});
  EXPECT_EQ(Found(R"(a(?#comment)b)", "ab"), Strings{"ab"});
  EXPECT_EQ(Found(R"(a{b})", "a{b}"), Strings{"a{b}"});
}

TEST(RegexSyntaxTest, CommonSyntaxIsUnchanged) {
  for (const char* pattern : {R"( ?\p{L}+|\p{N}{1,3})", R"([^\r\n\p{L}\p{N}]?+\p{Lu}*)",
                              R"((?<=a)b(?!c)|(?>d)|(?<n>e)\k<n>)"}) {
    EXPECT_EQ(OnigurumaToPcre2(pattern, "test"), pattern);
  }
}

TEST(TextPatternTest, MatchesPastTheStackOfTheJit) {
  const std::string text(1'000'000, 'a');
  EXPECT_EQ(Found("(?:a|b)+$", text), Strings{text});
}

}  // namespace
}  // namespace switchyard
