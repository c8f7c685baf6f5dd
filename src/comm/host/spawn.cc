#include "comm/host/spawn.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "comm/net/file_descriptor.h"
#include "core/blocked_signals.h"
#include "core/error.h"
#include "core/format.h"

namespace switchyard {

bool IsStopped(pid_t pid) {
  const std::string path = fmt::format("/proc/{}/stat", pid);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  const ssize_t n = file.get() < 0 ? -1 : read(file.get(), text.data(), text.size());
  if (n <= 0) return false;
  const std::string_view stat(text.data(), static_cast<size_t>(n));
  const size_t name_end = stat.rfind(')');  // the state follows the name
  return name_end != std::string_view::npos && stat.substr(name_end).starts_with(") T");
}

bool HasEnded(pid_t pid) {
  siginfo_t info{};
  const auto id = static_cast<id_t>(pid);
  return waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

double CpuSeconds(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

namespace {

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Data of the child, prepared before the fork. Between fork and exec the child may call only
// async-signal-safe functions, because other threads may have held locks (malloc's among them) at
// the fork.
struct ChildPlan {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  const std::vector<int>& inherited;
  int null_input;
  int report;  // a pipe that closes at exec; carries errno if exec fails
};

// Resets signal handlers: the child unblocks signals before exec and must not run the parent's
// handlers.
void SetSignals() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, nullptr);
  }
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  SetSignals();
  dup2(plan.null_input, STDIN_FILENO);
  // Covers descriptors that other libraries opened without close-on-exec. Kernels before 5.11 lack
  // the call; descriptors of this program have the flag already.
  syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  for (const int fd : plan.inherited) fcntl(fd, F_SETFD, 0);
  execve("/proc/self/exe", plan.arguments.data(), plan.environment.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(plan.report, &error, sizeof error);
  _exit(127);
}

}  // namespace

std::vector<std::string> CopyEnvironment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

pid_t SpawnSelf(const std::vector<std::string>& arguments,
                const std::vector<std::string>& environment, const std::vector<int>& inherited) {
  const auto refuse = [](int error) {
    return Resource("cannot start a rank process: {}", std::strerror(error));
  };
  const FileDescriptor null_input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  int ends[2];
  if (null_input.get() < 0 || pipe2(ends, O_CLOEXEC) != 0) throw refuse(errno);
  const FileDescriptor listen(ends[0]);
  FileDescriptor report(ends[1]);
  const ChildPlan plan{Pointers(arguments), Pointers(environment), inherited, null_input.get(),
                       report.get()};
  pid_t pid = -1;
  {
    // So handlers of this process do not run in the child before exec.
    const BlockedSignals blocked(BlockedSignals::Faults::kBlocked);
    pid = fork();
    if (pid == 0) RunChild(plan);
  }
  if (pid < 0) throw refuse(errno);
  report.Close();
  int error = 0;
  ssize_t n = 0;
  while ((n = read(listen.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (n > 0) {
    waitpid(pid, nullptr, 0);
    throw refuse(error);
  }
  return pid;
}

}  // namespace switchyard
