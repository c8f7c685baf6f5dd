#include "server/args/args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::vector<std::string>& args) {
  try {
    ParseServe(args);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string WriteYaml(const std::string& text) {
  const std::string path = testing::TempDir() + "/switchyard_args_test.yaml";
  std::ofstream(path) << text;
  return path;
}

TEST(ArgsTest, SglangsSpellings) {
  const auto a =
      ParseServe({"--model-path", "/m", "--tp", "4", "--expert-parallel-size", "2",
                  "--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency",
                  "--mem-fraction-static", "0.5", "--trust-remote-code", "--port", "1234"});
  ASSERT_TRUE(a);
  EXPECT_EQ(a->engine.model_path, "/m");
  EXPECT_EQ(a->engine.mesh.tp, 4);
  EXPECT_EQ(a->engine.mesh.ep, 2);
  EXPECT_EQ(a->engine.moe.a2a_backend, "deepep");
  EXPECT_EQ(a->engine.moe.deepep_mode, "low_latency");
  EXPECT_DOUBLE_EQ(a->engine.mem_fraction_static, 0.5);
  EXPECT_EQ(a->port, 1234);
}

TEST(ArgsTest, CommandLineOverridesTheFile) {
  const std::string path =
      WriteYaml("model-path: /from/file\ntp_size: 2\ndisable-radix-cache: true\nport: 7\n");
  const auto a = ParseServe({"--config", path, "--port", "8"});
  ASSERT_TRUE(a);
  EXPECT_EQ(a->engine.model_path, "/from/file");
  EXPECT_EQ(a->engine.mesh.tp, 2);
  EXPECT_TRUE(a->engine.disable_radix_cache);
  EXPECT_EQ(a->port, 8);
}

TEST(ArgsTest, SwitchesThatAreOffStayOff) {
  const auto a =
      ParseServe({"--config", WriteYaml("model-path: /m\ndisable-radix-cache: false\n")});
  ASSERT_TRUE(a);
  EXPECT_FALSE(a->engine.disable_radix_cache);
}

TEST(ArgsTest, ErrorsNameTheFlag) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("--model-path"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--tp", "two"}), HasSubstr("--tp"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--no-such-flag"}), HasSubstr("--no-such-flag"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--port", "70000"}), HasSubstr("--port"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--deepep-mode", "fast"}), HasSubstr("low_latency"));
  EXPECT_THAT(ErrorOf({"--model-path", "/m", "--device", "cuda"}), HasSubstr("--device"));
  EXPECT_THAT(ErrorOf({"--config", "/no/such/file.yaml"}), HasSubstr("/no/such/file.yaml"));
  EXPECT_THAT(ErrorOf({"--config", WriteYaml("tp-size: {a: 1}\n")}), HasSubstr(":1: tp-size"));
  EXPECT_THAT(ErrorOf({"--config", WriteYaml("a: [\n")}), HasSubstr("switchyard_args_test.yaml"));
}

TEST(ArgsTest, OneBatchTakesLists) {
  const auto a =
      ParseOneBatch({"--model-path", "/m", "--batch-size", "1", "8", "--input-len", "128"});
  ASSERT_TRUE(a);
  EXPECT_EQ(a->batch_sizes, (std::vector<int32_t>{1, 8}));
  EXPECT_EQ(a->input_lengths, std::vector<int32_t>{128});
}

}  // namespace
}  // namespace switchyard
