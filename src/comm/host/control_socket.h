// Control messages between the front and the leader of the ranks, over ZeroMQ.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace switchyard {

// One end of an ordered, reliable, bidirectional stream of byte messages between two processes of
// one host (or two threads). The endpoint is an abstract socket name: no file is left behind. Send
// may be called from one thread and Receive from another.
class ControlSocket {
 public:
  static std::string UniqueEndpoint();  // unpredictable; only processes that receive it can connect
  static ControlSocket Bind(const std::string& endpoint);
  static ControlSocket Connect(const std::string& endpoint);
  ControlSocket(ControlSocket&&) noexcept;
  ControlSocket& operator=(ControlSocket&&) noexcept;
  ~ControlSocket();

  void Send(std::string message);  // never blocks: queues without limit while the peer is busy
  // The next message, or nullopt after `timeout` (zero: polls once), or once the descriptor
  // `wake_fd` is readable (−1: none).
  std::optional<std::string> Receive(std::chrono::milliseconds timeout, int wake_fd = -1);
  // Call it if the peer has ended: the destructor then does not wait until the peer has received
  // all messages.
  void DiscardUnsent();
  // Becomes readable when messages may be pending (edge-triggered, as ZMQ_FD): after a wake-up,
  // call Receive(0) until it returns nullopt.
  int PollFd() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  explicit ControlSocket(std::unique_ptr<Impl> impl);
};

}  // namespace switchyard
