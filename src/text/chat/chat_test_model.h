// A test fixture that writes a chat template into its own model directory.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "core/temporary_directory.h"
#include "text/chat/chat_template.h"

namespace switchyard {

class ChatTestModel : public ::testing::Test {
 protected:
  using Json = nlohmann::ordered_json;

  ChatTemplate Load(const std::string& source) {
    std::ofstream(dir_ / "chat_template.jinja") << source;
    return ChatTemplate::FromDirectory(dir_);
  }

  // The prompt, or the text of the error.
  std::string Render(const std::string& source, const ChatInput& input) {
    try {
      return Load(source).Apply(input).text;
    } catch (const Error& error) {
      return std::string("error: ") + error.what();
    }
  }

  static ChatInput Conversation(const std::string& messages) {
    return {.messages = Json::parse(messages)};
  }

  const TemporaryDirectory temporary_;
  const std::filesystem::path& dir_ = temporary_.path();
};

}  // namespace switchyard
