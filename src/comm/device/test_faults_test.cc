#include "comm/device/test_faults.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <new>
#include <string>

#include "core/temporary_directory.h"

namespace switchyard {
namespace {

class TestFaultsTest : public ::testing::Test {
 protected:
  TestFaultsTest() { setenv(TestFaults::kVariable, folder_.c_str(), 1); }
  ~TestFaultsTest() override { unsetenv(TestFaults::kVariable); }
  void Order(const std::string& file, const std::string& text) const {
    std::ofstream(folder_ / file) << text;
  }
  bool Exists(const std::string& file) const { return std::filesystem::exists(folder_ / file); }

 private:
  const TemporaryDirectory temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

TEST_F(TestFaultsTest, WithoutTheVariableThereAreNone) {
  unsetenv(TestFaults::kVariable);
  EXPECT_EQ(TestFaults::FromEnvironment(0), nullptr);
}

TEST_F(TestFaultsTest, AnOrderOfThisRankAndPointIsObeyedOnce) {
  const auto faults = TestFaults::FromEnvironment(1);
  Order("0.plan", "throw");
  Order("1.forward", "throw");
  faults->At("plan");
  Order("1.plan", "throw");
  EXPECT_THROW(faults->At("plan"), std::bad_alloc);
  EXPECT_FALSE(Exists("1.plan"));
  faults->At("plan");
  EXPECT_TRUE(Exists("0.plan"));
}

TEST_F(TestFaultsTest, APermanentOrderIsObeyedEachTime) {
  const auto faults = TestFaults::FromEnvironment(0);
  Order("0.plan", "always throw");
  EXPECT_THROW(faults->At("plan"), std::bad_alloc);
  EXPECT_THROW(faults->At("plan"), std::bad_alloc);
}

TEST_F(TestFaultsTest, AnExitHasCodeZero) {
  const auto faults = TestFaults::FromEnvironment(0);
  Order("0.plan", "exit");
  EXPECT_EXIT(faults->At("plan"), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace switchyard
