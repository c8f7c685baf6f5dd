#include "chat/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "core/temporary_directory.h"

namespace switchyard::chat {
namespace {

using testing::HasSubstr;

ChatState TwoTurns() {
  ChatState state{.conversation = Conversation("Be brief.")};
  state.conversation.Add({"One?", "1", "Hm"});
  state.conversation.Add({"Two?", "2", ""});
  return state;
}

std::string TextOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ChatCommandsTest, RequestsHaveAllTurnsButNoEarlierReasoning) {
  const ChatState state = TwoTurns();
  const auto body = nlohmann::json::parse(state.conversation.Request(
      "m", {.temperature = 0.5, .seed = 7, .chat_template_kwargs = R"({"a": 1})"}, "Three?"));
  EXPECT_EQ(body["messages"].size(), 6U);
  EXPECT_EQ(body["messages"][0], nlohmann::json({{"role", "system"}, {"content", "Be brief."}}));
  EXPECT_EQ(body["messages"][2], nlohmann::json({{"role", "assistant"}, {"content", "1"}}));
  EXPECT_EQ(body["messages"][5], nlohmann::json({{"role", "user"}, {"content", "Three?"}}));
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["seed"], 7);
  EXPECT_EQ(body["chat_template_kwargs"]["a"], 1);
  for (const char* absent : {"top_p", "max_tokens", "reasoning_effort"})
    EXPECT_FALSE(body.contains(absent)) << absent;
}

TEST(ChatCommandsTest, TextThatIsNotUtf8IsReplaced) {
  const auto body = nlohmann::json::parse(Conversation().Request("m", {}, "a\xff z"));
  EXPECT_EQ(body["messages"][0]["content"], "a\xef\xbf\xbd z");
}

TEST(ChatCommandsTest, OneSlashBeginsACommand) {
  EXPECT_TRUE(IsCommand("/help"));
  EXPECT_FALSE(IsCommand("//etc/passwd"));
  EXPECT_FALSE(IsCommand(" /help"));
  EXPECT_FALSE(IsCommand(""));
}

TEST(ChatCommandsTest, UndoAndResetRemoveTurns) {
  ChatState state = TwoTurns();
  RunCommand("/undo", &state);
  ASSERT_EQ(state.conversation.turns().size(), 1U);
  EXPECT_EQ(state.conversation.turns().back().user, "One?");
  RunCommand("/reset", &state);
  EXPECT_TRUE(state.conversation.turns().empty());
  EXPECT_EQ(state.conversation.system(), "Be brief.");
  EXPECT_EQ(RunCommand("/undo", &state), "there is nothing to undo");
}

TEST(ChatCommandsTest, SystemShowsSetsAndRemovesThePrompt) {
  ChatState state = TwoTurns();
  EXPECT_EQ(RunCommand("/system", &state), "Be brief.");
  RunCommand("/system  Be kind. ", &state);
  EXPECT_EQ(state.conversation.system(), "Be kind.");
  RunCommand("/system -", &state);
  EXPECT_EQ(state.conversation.system(), "");
}

TEST(ChatCommandsTest, SaveWritesMarkdownOrJsonAndKeepsOtherFiles) {
  const TemporaryDirectory temporary;
  const std::filesystem::path& folder = temporary.path();
  ChatState state = TwoTurns();
  RunCommand("/save " + (folder / "a b.md").string(), &state);
  EXPECT_THAT(TextOf(folder / "a b.md"), HasSubstr("## User\n\nTwo?\n\n## Assistant\n\n2\n"));
  EXPECT_THAT(TextOf(folder / "a b.md"), HasSubstr("Hm"));
  RunCommand("/save " + (folder / "a b.md").string(), &state);  // its own file
  RunCommand("/save " + (folder / "a.json").string(), &state);
  const auto saved = nlohmann::json::parse(TextOf(folder / "a.json"));
  EXPECT_EQ(saved["messages"].size(), 5U);
  EXPECT_EQ(saved["messages"][2]["reasoning_content"], "Hm");

  std::ofstream(folder / "mine.md") << "mine";
  EXPECT_THROW(RunCommand("/save " + (folder / "mine.md").string(), &state), Error);
  EXPECT_THROW(RunCommand("/save " + (folder / "none/a.md").string(), &state), Error);
  EXPECT_THROW(RunCommand("/save " + (folder / std::string(300, 'a')).string(), &state), Error);
  EXPECT_EQ(TextOf(folder / "mine.md"), "mine");
}

TEST(ChatCommandsTest, WrongCommandsAreRefused) {
  ChatState state;
  for (const char* line :
       {"/", "/nothing", "/undo 3", "/help me", "/save", "/reasoning", "/reasoning x"})
    EXPECT_THROW(RunCommand(line, &state), Error) << line;
  RunCommand("/reasoning fold", &state);
  EXPECT_EQ(state.reasoning, ReasoningMode::kFold);
  RunCommand("/exit", &state);
  EXPECT_TRUE(state.ended);
}

TEST(ChatScreenTest, ControlCharactersAreRemoved) {
  EXPECT_EQ(WithoutControls("a\x1b[31mb\tc\nd\r\x07\x7f"), "a[31mb\tc\nd");
  EXPECT_EQ(WithoutControls("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xc2\xa0"),
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xc2\xa0");
  EXPECT_EQ(WithoutControls("a\xc2\x9b"
                            "31mb"),
            "a31mb");  // U+009B
}

}  // namespace
}  // namespace switchyard::chat
