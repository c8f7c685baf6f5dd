#include "comm/device/test_faults.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>
#include <thread>

#include "core/check.h"
#include "core/format.h"

namespace switchyard {
namespace {

[[noreturn]] void Spin() {
  for (volatile unsigned turns = 0;;) turns = turns + 1;
}

void Fail(std::string_view how) {
  if (how == "kill") raise(SIGKILL);
  if (how == "segv") raise(SIGSEGV);
  if (how == "abort") raise(SIGABRT);
  if (how == "bus") raise(SIGBUS);
  if (how == "exit") _exit(0);
  if (how == "throw") throw std::bad_alloc();
  if (how == "spin") Spin();
  if (how != "stop") CheckFailed(__FILE__, __LINE__, fmt::format("unknown test fault {}", how));
  raise(SIGSTOP);
}

}  // namespace

std::unique_ptr<TestFaults> TestFaults::FromEnvironment(int rank) {
  const char* folder = std::getenv(kVariable);
  if (folder == nullptr || *folder == '\0') return nullptr;
  return std::unique_ptr<TestFaults>(new TestFaults(folder, rank));
}

void TestFaults::At(std::string_view point) const {
  constexpr std::string_view kAlways = "always ";
  const std::string path = fmt::format("{}/{}.{}", folder_, rank_, point);
  if (access(path.c_str(), R_OK) != 0) return;
  std::ifstream file(path);
  std::string how{std::istreambuf_iterator<char>(file), {}};
  if (how == "hold") {
    while (access(path.c_str(), R_OK) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return;
  }
  if (!how.starts_with(kAlways)) {
    if (unlink(path.c_str()) == 0) Fail(how);
  } else {
    Fail(how.substr(kAlways.size()));
  }
}

}  // namespace switchyard
