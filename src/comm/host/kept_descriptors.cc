#include "comm/host/kept_descriptors.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr size_t kControlBytes = CMSG_SPACE((KeptDescriptors::kMost + 1) * sizeof(int));

Error CannotKeep(const char* what) {
  return Resource("cannot keep descriptors of a rank: {}: {}", what, std::strerror(errno));
}

}  // namespace

KeptDescriptors KeptDescriptors::Create() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    throw CannotKeep("no sockets");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

KeptDescriptors KeptDescriptors::FromFds(int in, int out) {
  for (const int fd : {in, out}) {
    struct stat status {};
    if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode))
      throw Invalid("descriptor {} is not a socket for kept descriptors", fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  return {FileDescriptor(in), FileDescriptor(out)};
}

void KeptDescriptors::Put(std::string_view record, const std::vector<int>& descriptors) {
  CHECK(valid());
  Clear();
  if (std::ssize(descriptors) > kMost)
    throw Resource("cannot keep {} descriptors of a rank: want at most {}", descriptors.size(),
                   kMost);
  // The record goes into a file of its own, because a message of sockets is limited in size.
  const FileDescriptor file = WriteMemoryFile("switchyard-kept-record", record);
  if (file.get() < 0) throw CannotKeep("writing the record");
  std::vector<int> all = {file.get()};
  all.insert(all.end(), descriptors.begin(), descriptors.end());
  char byte = 0;  // a message is not empty
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(all.size() * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(all.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), all.data(), all.size() * sizeof(int));
  ssize_t sent = -1;
  while ((sent = sendmsg(out_.get(), &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
  }
  if (sent != 1) throw CannotKeep("sending");
}

// Duplicates of the descriptors of the first message; nullopt: there is none.
std::optional<std::vector<FileDescriptor>> KeptDescriptors::Peek() const {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t received = -1;
  while ((received = recvmsg(in_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | MSG_PEEK)) <
             0 &&
         errno == EINTR) {
  }
  if (received < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    throw CannotKeep("receiving");
  }
  std::vector<FileDescriptor> descriptors;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> fds((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
    for (const int fd : fds) descriptors.emplace_back(fd);
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    throw Resource("cannot receive the kept descriptors of a rank: no free descriptors");
  return descriptors;
}

std::optional<KeptDescriptors::Kept> KeptDescriptors::Get() const {
  CHECK(valid());
  // The kernel duplicates the descriptors of a message that is read with MSG_PEEK.
  std::optional<std::vector<FileDescriptor>> all = Peek();
  if (!all || all->empty()) return std::nullopt;
  std::optional<std::string> record = ReadMemoryFile(all->front().get());
  if (!record) throw CannotKeep("reading the record");
  Kept kept{.record = std::move(*record)};
  all->erase(all->begin());
  kept.descriptors = std::move(*all);
  return kept;
}

void KeptDescriptors::Clear() {
  CHECK(valid());
  // Without a buffer for them, the kernel closes the descriptors of a message. So this process
  // needs no free ones.
  for (;;) {
    char byte = 0;
    const ssize_t received = recv(in_.get(), &byte, 1, MSG_DONTWAIT);
    if (received > 0 || (received < 0 && errno == EINTR)) continue;
    if (received == 0 || errno == EAGAIN || errno == EWOULDBLOCK) return;
    throw CannotKeep("receiving");
  }
}

}  // namespace switchyard
