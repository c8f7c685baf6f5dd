// Renders each template of tests/data/chat with each conversation of that folder. Compares text and
// ids with those of transformers (make_chats.py in that folder).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "text/chat/chat_template.h"
#include "text/chat/chat_test_model.h"
#include "text/jinja/exact_json.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kData = SWITCHYARD_TEST_DATA;

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Json ReadJsonFile(const fs::path& path) {
  return jinja::ParseExactJson(ReadAll(path), "file", {100, 1000});
}

std::string Fnv(std::string_view bytes) { return fmt::format("{:016x}", HashOf(bytes)); }

std::string Fnv(const std::vector<int32_t>& ids) {
  return Fnv(
      std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)));
}

// The tokenizer of a fixture, with the markers of the templates as special tokens.
std::unique_ptr<Tokenizer> TokenizerWith(const Json& markers) {
  Json file = Json::parse(ReadAll(kData / "fixtures/qwen3/tokenizer.json"));
  int id = 0;
  for (const Json& entry : file["added_tokens"]) id = std::max(id, entry["id"].get<int>());
  for (const auto& [token, value] : file["model"]["vocab"].items())
    id = std::max(id, value.get<int>());
  for (const Json& marker : markers) {
    file["added_tokens"].push_back(
        {{"id", ++id}, {"content", marker}, {"normalized", false}, {"special", true}});
  }
  return Tokenizer::FromJson(file.dump(), "test");
}

ChatInput InputOf(const Json& chat) {
  return {.messages = chat["messages"],
          .tools = chat.value("tools", Json()),
          .add_generation_prompt = chat.value("add_generation_prompt", true),
          .continue_final_message = chat.value("continue_final_message", false),
          .kwargs = chat.value("chat_template_kwargs", Json())};
}

class ChatDifferentialTest : public ChatTestModel {};

TEST_F(ChatDifferentialTest, EveryTemplateWithEveryConversation) {
  const Json expected = ReadJsonFile(kData / "chat/chats.json");
  const Json chats = ReadJsonFile(kData / "chat/conversations.json");
  const auto tokenizer = TokenizerWith(expected["special_tokens"]);
  EXPECT_GE(expected["chats"].size(), 55u);
  EXPECT_GE(chats.size(), 13u);
  std::ofstream(dir_ / "special_tokens_map.json") << R"({"bos_token": "<s>", "eos_token": "</s>"})";
  for (const auto& [shape, outcomes] : expected["chats"].items()) {
    const ChatTemplate chat = Load(ReadAll(kData / "chat/shapes" / (shape + ".jinja")));
    for (const auto& [title, outcome] : outcomes.items()) {
      SCOPED_TRACE(fmt::format("{} {}", shape, title));
      try {
        const jinja::Rendered rendered = chat.Apply(InputOf(chats[title]));
        EXPECT_TRUE(outcome.is_array()) << rendered.text;
        if (!outcome.is_array()) continue;
        EXPECT_EQ(Fnv(rendered.text), outcome[0].get<std::string>()) << rendered.text;
        EXPECT_EQ(Fnv(EncodeRendered(*tokenizer, rendered)), outcome[1].get<std::string>());
      } catch (const jinja::TemplateError& error) {
        EXPECT_TRUE(outcome.is_string()) << error.what();
        if (outcome.is_string() && !outcome.get_ref<const std::string&>().empty()) {
          EXPECT_EQ(error.message(), outcome.get<std::string>());
        }
      } catch (const Error& error) {
        EXPECT_TRUE(outcome.is_string()) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
