// TCP between the hosts of one engine.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/net/file_descriptor.h"

namespace switchyard {

// As in a URL: "10.0.0.1:5000", "[fd00::1]:5000". Port 0 of something that listens: any free one.
struct HostPort {
  std::string host;
  int port = 0;

  // Error kInvalid, which starts with `what`, where the text is none.
  static HostPort Parse(std::string_view what, std::string_view text);
  std::string Text() const;
};

// When a wait is to end before what it waits for.
struct IoLimit {
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  std::function<bool()> stop;  // asked ten times a second; none: not asked

  static IoLimit After(std::chrono::milliseconds timeout, std::function<bool()> stop = {});
};

enum class IoResult { kDone, kTimeout, kStopped, kClosed };

// One connection. The kernel probes an idle one, so that the loss of the other host is noticed. One
// thread may send while another receives; Shutdown may come from any.
class TcpStream {
 public:
  TcpStream() = default;
  explicit TcpStream(FileDescriptor socket);

  // Tries again until somebody listens there; nothing after the limit. Error kInvalid where there
  // is no such host.
  static std::optional<TcpStream> Connect(const HostPort& peer, const IoLimit& limit);

  // All of the parts, one after the other. They are used up where the result is not kDone, which
  // leaves the stream in the middle of something: it cannot be used further.
  IoResult Send(std::span<iovec> parts, const IoLimit& limit = {});
  IoResult Receive(std::span<iovec> parts, const IoLimit& limit = {});
  IoResult Receive(void* bytes, size_t size, const IoLimit& limit = {});

  void EndSending();  // the peer reads to the end
  void Shutdown();    // sends and receives of this end, and waiting ones, give kClosed

  std::string LocalHost() const;
  std::string PeerHost() const;

 private:
  template <typename Step>
  IoResult Move(std::span<iovec> parts, const IoLimit& limit, short event, Step step);

  FileDescriptor socket_;
};

class TcpListener {
 public:
  TcpListener() = default;
  explicit TcpListener(FileDescriptor socket) : socket_(std::move(socket)) {}  // that listens
  // Error kInvalid where the host is no address of this machine, kResource where the port is taken.
  static TcpListener Bind(const HostPort& local);

  HostPort address() const;
  std::optional<TcpStream> Accept(const IoLimit& limit);
  FileDescriptor& socket() { return socket_; }  // to be inherited by another process

 private:
  FileDescriptor socket_;
};

}  // namespace switchyard
