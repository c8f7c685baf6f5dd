// Faults that a test injects into a rank at an exact point of a step.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace switchyard {

// Injects faults for tests. Commands are files in a folder, so that a test can write them while the
// ranks run. If the file RANK.POINT exists when the rank passes the point, the rank removes the
// file and fails. The text of the file names the failure:
// - kill, segv, abort, bus, stop: raises that signal;
// - exit: ends the process with exit code 0;
// - throw: throws std::bad_alloc;
// - spin: loops forever;
// - hold: waits until the file is removed.
// If the text begins with "always ", the file is not removed. Owned by the rank's SymmetricMemory,
// used by the rank's thread only.
class TestFaults {
 public:
  // The environment variable with the path of the folder. Not set outside of tests.
  static constexpr const char* kVariable = "SWITCHYARD_TEST_FAULTS";

  static std::unique_ptr<TestFaults> FromEnvironment(int rank);  // null if the variable is not set
  void At(std::string_view point) const;

 private:
  TestFaults(std::string folder, int rank) : folder_(std::move(folder)), rank_(rank) {}

  const std::string folder_;
  const int rank_;
};

}  // namespace switchyard
