// A client's socket: TCP or Unix, plain or TLS. Internal to this folder.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace switchyard::http {

class TlsContext;  // certificate and key (tls_context.h)

// All members belong to the socket's strand. One read and one write may be under way at once.
class ClientStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  struct Done {
    boost::system::error_code ec;
    size_t count = 0;
  };

  // `tls` may be null and outlives the stream.
  ClientStream(Socket socket, const TlsContext* tls);
  ~ClientStream();

  boost::asio::awaitable<bool> Handshake();  // true at once without TLS
  // At least one byte, or an error. At the end of what the client sends `ended` becomes true, and
  // every later call returns that end at once: the kernel reports it only one time.
  boost::asio::awaitable<Done> ReadSome(boost::asio::mutable_buffer into);
  boost::asio::awaitable<Done> WriteSome(std::string_view bytes);
  // Says that nothing more will be written.
  boost::asio::awaitable<void> ShutdownSend();

  void Cancel();
  void Close();

  bool is_open() const { return socket_.is_open(); }
  bool ended() const { return ended_; }
  bool secure() const { return tls_ != nullptr; }
  // Asked of the kernel: the client has announced its end, maybe behind bytes not yet read; or the
  // connection is reset, so that nothing written can arrive.
  bool EndAnnounced() const;
  bool IsReset() const;

  auto get_executor() { return socket_.get_executor(); }

 private:
  struct Tls;
  Socket socket_;
  bool ended_ = false;
  std::unique_ptr<Tls> tls_;
};

// "127.0.0.1:51234", "[::1]:51234", "unix"; "unknown" where the client is gone already.
std::string PeerName(const ClientStream::Socket& socket);

}  // namespace switchyard::http
