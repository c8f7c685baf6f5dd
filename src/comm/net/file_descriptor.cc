#include "comm/net/file_descriptor.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

namespace switchyard {

FileDescriptor WriteMemoryFile(const char* name, std::string_view bytes) {
  FileDescriptor file(memfd_create(name, MFD_CLOEXEC));
  if (file.get() < 0) return {};
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(file.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = errno;
      file.Close();
      errno = error;
      return {};
    }
    done += static_cast<size_t>(n);
  }
  return file;
}

std::optional<std::string> ReadMemoryFile(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode)) {
    errno = EINVAL;
    return std::nullopt;
  }
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    done += static_cast<size_t>(n);
  }
  return bytes;
}

}  // namespace switchyard
