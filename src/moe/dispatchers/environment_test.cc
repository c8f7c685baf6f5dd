#include "moe/dispatchers/environment.h"

#include <cstdlib>
#include <map>
#include <string>

#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Sets environment variables while it exists.
class Environment {
 public:
  using Variables = std::map<std::string, std::string>;
  explicit Environment(Variables variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }

 private:
  Variables variables_;
};

TEST(MoeEnvironmentTest, VariablesOfSglangAreFlags) {
  const Environment environment(
      Environment::Variables{{"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "32"},
                             {"SGLANG_DEEPEP_BF16_DISPATCH", "true"},
                             {"DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS", "1024"},
                             {"DEEPEP_NORMAL_LONG_SEQ_ROUND", "16"},
                             {"DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ", "1"},
                             {"HCCL_BUFFSIZE", "1500"}});
  MoeOptions options;
  ApplyMoeEnvironment(&options);
  EXPECT_EQ(options.max_dispatch_tokens_per_rank, 32);
  EXPECT_EQ(options.dispatcher_output_dtype, "bf16");
  EXPECT_EQ(options.long_seq_per_round_tokens, 1024);
  EXPECT_EQ(options.long_seq_rounds, 16);
  EXPECT_TRUE(options.combine_long_seq);
  EXPECT_EQ(options.hccl_buffer_mib, 1500);
}

TEST(MoeEnvironmentTest, WhatIsNotSetStays) {
  const Environment environment(
      {{"SGLANG_DEEPEP_BF16_DISPATCH", "0"}, {"DEEPEP_NORMAL_LONG_SEQ_ROUND", ""}});
  MoeOptions options = {.max_dispatch_tokens_per_rank = 7,
                        .dispatcher_output_dtype = "fp8",
                        .long_seq_per_round_tokens = 9,
                        .long_seq_rounds = 3};
  ApplyMoeEnvironment(&options);
  EXPECT_EQ(options.max_dispatch_tokens_per_rank, 7);
  EXPECT_EQ(options.dispatcher_output_dtype, "fp8");
  EXPECT_EQ(options.long_seq_per_round_tokens, 9);
  EXPECT_EQ(options.long_seq_rounds, 3);
  EXPECT_FALSE(options.combine_long_seq);
  EXPECT_EQ(options.hccl_buffer_mib, 0);
}

TEST(MoeEnvironmentTest, BadValuesAreRefusedByName) {
  for (const std::string name :
       {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "SGLANG_DEEPEP_BF16_DISPATCH",
        "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS", "DEEPEP_NORMAL_LONG_SEQ_ROUND",
        "DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ", "HCCL_BUFFSIZE", "DEEPEP_HCCL_BUFFSIZE"}) {
    for (const std::string value : {"many", "-1", "3000000000", "12 "}) {
      const Environment environment(Environment::Variables{{name, value}});
      MoeOptions options;
      try {
        ApplyMoeEnvironment(&options);
        ADD_FAILURE() << name << "=" << value << " was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
        EXPECT_THAT(error.what(), AllOf(HasSubstr(name), HasSubstr(value)));
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
