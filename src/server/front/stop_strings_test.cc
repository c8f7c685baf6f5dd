#include <gtest/gtest.h>

#include <random>

#include "server/front/token_text.h"

namespace switchyard {
namespace {

std::string Filter(StopStrings& s, const std::string& text, size_t chunk) {
  std::string out;
  for (size_t i = 0; i < text.size(); i += chunk)
    out += s.Push(std::string_view(text).substr(i, chunk));
  return out + s.Finish();
}

TEST(StopStringsTest, CutsAtTheFirstMatchHoweverTheTextComes) {
  const std::string text = "one two three STOP four STO";
  for (size_t chunk = 1; chunk <= text.size(); ++chunk) {
    StopStrings s({"STOP"}, false);
    EXPECT_EQ(Filter(s, text, chunk), "one two three ");
    EXPECT_EQ(s.matched(), "STOP");
    StopStrings keep({"STOP"}, true);
    EXPECT_EQ(Filter(keep, text, chunk), "one two three STOP");
  }
}

TEST(StopStringsTest, WithoutMatchNothingIsLost) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "ab"[random() % 2];
    StopStrings s({"aaaaaaaaaaaaaaaaaaaaaaab", "bbbbbbbbbbbbbbbbbbbbbbba"}, false);
    EXPECT_EQ(Filter(s, text, 1 + random() % 9), text);
    EXPECT_FALSE(s.matched());
  }
}

TEST(StopStringsTest, HoldsBackOnlyWhatMayBecomeAStop) {
  StopStrings s({"\n\n", "User:"}, false);
  EXPECT_EQ(s.Push("hello\n"), "hello");
  EXPECT_EQ(s.Push("Us"), "\n");
  EXPECT_EQ(s.Push("e"), "");
  EXPECT_EQ(s.Push("d"), "Used");
  EXPECT_EQ(s.Push(" Use"), " ");
  EXPECT_EQ(s.Finish(), "Use");
}

TEST(StopStringsTest, UncheckedTextMayBeginAStopButNotBeOne) {
  StopStrings s({"ab", "b"}, false);
  EXPECT_EQ(s.Push({.text = "xab", .may_stop = false}), "xab");
  EXPECT_EQ(s.Push({.text = "a", .may_stop = false}), "");
  EXPECT_EQ(s.Push("b"), "");
  EXPECT_EQ(s.matched(), "ab");
  StopStrings inner({"b", "abc"}, false);  // "b" is part of the text held back for "abc"
  EXPECT_EQ(inner.Push({.text = "ab", .may_stop = false}), "");
  EXPECT_EQ(inner.Push("x"), "abx");
  EXPECT_FALSE(inner.matched());
  StopStrings whole({"b", "abc"}, false);
  EXPECT_EQ(whole.Push({.text = "ab", .may_stop = false}), "");
  EXPECT_EQ(whole.Push("c"), "");
  EXPECT_EQ(whole.matched(), "abc");
}

TEST(StopStringsTest, HiddenTextIsMatchedButNotShown) {
  StopStrings s({"c<x>d"}, false);
  EXPECT_EQ(s.Push("ab"), "ab");
  EXPECT_EQ(s.Push({.text = "<y>", .hidden = true}), "");
  EXPECT_EQ(s.Push("c"), "");
  EXPECT_EQ(s.Push({.text = "<x>", .hidden = true}), "");
  EXPECT_EQ(s.Push("e"), "ce");
  EXPECT_EQ(s.Push("c"), "");
  EXPECT_EQ(s.Push({.text = "<x>", .hidden = true}), "");
  EXPECT_EQ(s.Finish(), "c");
}

TEST(StopStringsTest, TheEarliestMatchWins) {
  StopStrings s({"cd", "bc"}, false);
  EXPECT_EQ(s.Push("abcd"), "a");
  EXPECT_EQ(s.matched(), "bc");
  EXPECT_EQ(s.Push("more"), "");
}

}  // namespace
}  // namespace switchyard
