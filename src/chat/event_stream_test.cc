#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "chat/chat_client.h"

namespace switchyard::chat {
namespace {

std::vector<std::string> Events(std::string_view bytes, size_t piece) {
  EventStream stream;
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size(); at += piece)
    stream.Feed(bytes.substr(at, piece), [&](std::string_view data) { events.emplace_back(data); });
  return events;
}

TEST(EventStreamTest, EventsDoNotDependOnHowBytesAreDivided) {
  const std::string bytes =
      ": a comment\n\n"
      "data: one\n\n"
      "event: x\ndata:two\nid: 3\n\n"
      "data: first line\r\ndata: second line\r\n\r\n"
      "data: \xe2\x82\xac\r\r"
      "data\n\n"
      "database: no field\n\n"
      "data: incomplete\n";
  const std::vector<std::string> expected = {"one", "two", "first line\nsecond line",
                                             "\xe2\x82\xac", ""};
  for (size_t piece = 1; piece <= bytes.size(); ++piece)
    EXPECT_EQ(Events(bytes, piece), expected) << piece;
}

TEST(EventStreamTest, EmptyInputHasNoEvents) {
  EXPECT_TRUE(Events("", 1).empty());
  EXPECT_TRUE(Events("\n\n\n", 1).empty());
}

}  // namespace
}  // namespace switchyard::chat
