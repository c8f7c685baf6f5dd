// TCP between the hosts of one engine.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/net/file_descriptor.h"

namespace switchyard {

// As in a URL: "10.0.0.1:5000", "[fd00::1]:5000". Port 0 of a listener: any free port.
struct HostPort {
  std::string host;
  int port = 0;

  // Throws Error kInvalid, with a message that starts with `what`, for malformed text.
  static HostPort Parse(std::string_view what, std::string_view text);
  std::string Text() const;
};

// Deadline and stop condition of a blocking operation.
struct IoLimit {
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
  std::function<bool()> stop;  // polled ten times a second; true: gives up; may be empty

  static IoLimit After(std::chrono::milliseconds timeout, std::function<bool()> stop = {});
};

enum class IoResult { kDone, kTimeout, kStopped, kClosed };

// One connection. The kernel sends keepalive probes, which detect the loss of the other host. One
// thread may send while another receives; any thread may call Shutdown.
class TcpStream {
 public:
  TcpStream() = default;
  explicit TcpStream(FileDescriptor socket);

  // Retries until the peer listens; returns nullopt after the limit. Error kInvalid if the host
  // does not exist.
  static std::optional<TcpStream> Connect(const HostPort& peer, const IoLimit& limit);

  // Transfers all of the parts, in order. A result other than kDone leaves the stream in the middle
  // of a transfer: neither the stream nor `parts` can be used further.
  IoResult Send(std::span<iovec> parts, const IoLimit& limit = {});
  IoResult Receive(std::span<iovec> parts, const IoLimit& limit = {});
  IoResult Receive(void* bytes, size_t size, const IoLimit& limit = {});
  // Receives what has arrived, without waiting, and removes it from the front of `left`. kDone:
  // `left` is empty. kTimeout: more has to arrive; the call may be repeated.
  IoResult ReceiveArrived(std::span<std::byte>& left);

  void EndSending();  // the peer receives an end of stream
  void Shutdown();    // current and later sends and receives of this end return kClosed

  std::string LocalHost() const;
  std::string PeerHost() const;
  int fd() const { return socket_.get(); }  // for poll

 private:
  template <typename Step>
  IoResult Move(std::span<iovec> parts, const IoLimit& limit, short event, Step step);

  FileDescriptor socket_;
};

class TcpListener {
 public:
  TcpListener() = default;
  explicit TcpListener(FileDescriptor socket) : socket_(std::move(socket)) {}  // already listening
  // Error kInvalid if the host is not an address of this machine, kResource if the port is in use.
  static TcpListener Bind(const HostPort& local);

  HostPort address() const;
  std::optional<TcpStream> Accept(const IoLimit& limit);
  // Returns a connection that has arrived, if any. Sets `*exhausted` to whether accept failed
  // because there are no descriptors or no memory left; the connection then remains pending.
  std::optional<TcpStream> AcceptArrived(bool* exhausted = nullptr);
  FileDescriptor& socket() { return socket_; }  // for inheritance by another process

 private:
  FileDescriptor socket_;
};

}  // namespace switchyard
