// Faults that a test injects into a rank at an exact point of a step.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace switchyard {

// Injects faults for tests. Commands are files in a folder, so that a test can write them while the
// ranks run. If the file RANK.POINT exists when the rank passes the point, the rank removes it and
// fails as its text says: kill, segv, abort, bus or stop (that signal), exit (exit code 0), throw
// (std::bad_alloc), or spin (an endless loop). After "always ", the file stays. Owned by the rank's
// SymmetricMemory, used by the rank's thread only.
class TestFaults {
 public:
  // The folder. Not set outside of tests.
  static constexpr const char* kVariable = "SWITCHYARD_TEST_FAULTS";

  static std::unique_ptr<TestFaults> FromEnvironment(int rank);  // null if the variable is not set
  void At(std::string_view point) const;

 private:
  TestFaults(std::string folder, int rank) : folder_(std::move(folder)), rank_(rank) {}

  const std::string folder_;
  const int rank_;
};

}  // namespace switchyard
