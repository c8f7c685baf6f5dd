#include "comm/host/process_state.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>

#include "comm/net/file_descriptor.h"
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

double CpuSeconds(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace switchyard
