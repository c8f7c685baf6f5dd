#include "server/api/guarded.h"

#include <gtest/gtest.h>

#include "server/front/test_service.h"

namespace switchyard {
namespace {

class RedactPathsTest : public ::testing::Test {
 protected:
  RedactPathsTest() {
    world_.args.tokenizer_path = "models/my tokenizer";
    world_.args.chat_template = "/srv/my templates/chat.jinja";
  }
  std::string Redact(const std::string& message) { return RedactPaths(world_.service, message); }

  TestService world_{"qwen3_moe"};
};

TEST_F(RedactPathsTest, DirectoriesOfTheModelAreRemoved) {
  const std::string dir = world_.model.path.string();
  EXPECT_EQ(Redact(dir + "/config.json: bad"), "config.json: bad");
  EXPECT_EQ(Redact(dir + " has no template"), "the model has no template");
  EXPECT_EQ(Redact("nothing is in " + dir + "."), "nothing is in the model.");
  EXPECT_EQ(Redact("models/my tokenizer/tokenizer.json: bad"), "tokenizer.json: bad");
  EXPECT_EQ(Redact("(models/my tokenizer)"), "(the model)");
  EXPECT_EQ(Redact("/srv/my templates/chat.jinja: line 3"), "chat.jinja: line 3");
}

TEST_F(RedactPathsTest, OtherAbsolutePathsKeepTheirLastComponent) {
  EXPECT_EQ(Redact("/usr/lib/switchyard/a.so: bad"), "a.so: bad");
  EXPECT_EQ(Redact("/usr/models/my tokenizer/x"), "my tokenizer/x");
  EXPECT_EQ(Redact("/srv/my_templates/a"), "a");
}

TEST_F(RedactPathsTest, OtherTextsStay) {
  const std::string other = world_.model.path.string() + "_old/config.json";
  for (const std::string& text : {other, std::string("models/my tokenizers"),
                                  std::string("see /v1/models, not models/x"), std::string()})
    EXPECT_EQ(Redact(text), text);
}

}  // namespace
}  // namespace switchyard
