#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "server/native/native.h"

namespace switchyard::native {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

profile::Options Parse(const char* body, bool gpus = false) {
  return ParseProfile(Json::parse(body), gpus);
}

// The field and the message of the refusal.
std::pair<std::string, std::string> Refusal(const char* body, bool gpus = false) {
  try {
    Parse(body, gpus);
  } catch (const RequestError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return {error.param(), error.what()};
  }
  return {"", "no error"};
}

TEST(ProfileFields, HaveDefaults) {
  unsetenv("SWITCHYARD_TORCH_PROFILER_DIR");
  unsetenv("SGLANG_TORCH_PROFILER_DIR");
  for (const bool gpus : {false, true}) {
    const profile::Options options = Parse(R"({"num_steps": null, "with_stack": false})", gpus);
    EXPECT_EQ(options.dir, "/tmp");
    EXPECT_THAT(options.name, MatchesRegex("[0-9]+\\.[0-9]+"));
    EXPECT_EQ(options.start_step, 0);
    EXPECT_EQ(options.num_steps, 0);
    EXPECT_TRUE(options.host);
    EXPECT_EQ(options.device, gpus);
    EXPECT_FALSE(options.by_stage);
    EXPECT_FALSE(options.record_shapes);
  }
  setenv("SGLANG_TORCH_PROFILER_DIR", "/b", 1);
  EXPECT_EQ(Parse("{}").dir, "/b");
  setenv("SWITCHYARD_TORCH_PROFILER_DIR", "/a", 1);
  EXPECT_EQ(Parse("{}").dir, "/a");
  unsetenv("SWITCHYARD_TORCH_PROFILER_DIR");
  unsetenv("SGLANG_TORCH_PROFILER_DIR");
}

TEST(ProfileFields, AreHonoured) {
  const profile::Options options = Parse(
      R"({"output_dir": "/a/b/../c", "start_step": 3, "num_steps": "5", "activities": ["GPU"],
          "profile_by_stage": true, "record_shapes": true, "profile_prefix": "p",
          "profile_id": "i", "merge_profiles": false, "profile_stages": []})",
      true);
  EXPECT_EQ(options.dir, "/a/c");
  EXPECT_EQ(options.name, "p-i");
  EXPECT_EQ(options.start_step, 3);
  EXPECT_EQ(options.num_steps, 5);
  EXPECT_FALSE(options.host);
  EXPECT_TRUE(options.device);
  EXPECT_TRUE(options.by_stage);
  EXPECT_TRUE(options.record_shapes);
  EXPECT_EQ(Parse(R"({"profile_prefix": "p"})").name, "p");
  EXPECT_EQ(Parse(R"({"profile_id": "i"})").name, "i");
  EXPECT_EQ(Parse(R"({"output_dir": "x"})").dir, std::filesystem::absolute("x").string());
  // On CPUs, "GPU" in addition to "CPU" has no effect.
  const profile::Options on_cpus = Parse(R"({"activities": ["CPU", "GPU"]})");
  EXPECT_TRUE(on_cpus.host);
  EXPECT_FALSE(on_cpus.device);
}

TEST(ProfileFields, AreRefusedByName) {
  for (const auto& [body, field] : std::vector<std::pair<const char*, const char*>>{
           {R"({"with_stack": true})", "with_stack"},
           {R"({"merge_profiles": true})", "merge_profiles"},
           {R"({"profile_stages": ["decode"]})", "profile_stages"},
           {R"({"steps": 3})", "steps"},
           {R"({"num_steps": 0})", "num_steps"},
           {R"({"start_step": -1})", "start_step"},
           {R"({"activities": []})", "activities"},
           {R"({"activities": ["CPU", "MEM"]})", "activities"},
           {R"({"activities": ["GPU"]})", "activities"},
           {R"({"output_dir": ""})", "output_dir"},
           {R"({"output_dir": 3})", "output_dir"},
           {R"({"profile_prefix": "../x"})", "profile_prefix"},
           {R"({"profile_id": "a b"})", "profile_id"},
           {R"({"profile_id": ".a"})", "profile_id"},
           {R"({"record_shapes": "perhaps"})", "record_shapes"}}) {
    const auto [named, message] = Refusal(body);
    EXPECT_EQ(named, field) << body;
    EXPECT_THAT(message, HasSubstr(field)) << body;
  }
}

}  // namespace
}  // namespace switchyard::native
