// The byte stream of a client, with and without TLS, and its address.
#pragma once

#include <fmt/format.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace switchyard::http {

// TLS certificate and key of the server. Internal to this folder.

// Loaded once at startup; then shared by all I/O threads.
class TlsContext {
 public:
  // PEM files. The certificate file may contain a chain, with the server's certificate first.
  // Throws kInvalid with the flag's name if a file is unusable or the key does not match.
  TlsContext(const std::string& certificate_file, const std::string& key_file,
             const std::string& key_password);

  // Mutable because Asio counts references from streams, in a thread-safe way.
  boost::asio::ssl::context& context() const { return context_; }

 private:
  mutable boost::asio::ssl::context context_{boost::asio::ssl::context::tls_server};
};

// A client's socket: TCP or Unix, plain or TLS. Internal to this folder.

// Use all members on the socket's strand. One read and one write may be pending at the same time.
class ClientStream {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  struct Done {
    boost::system::error_code ec;
    size_t count = 0;
  };

  // `tls` may be null. It must outlive the stream.
  ClientStream(Socket socket, const TlsContext* tls);
  ~ClientStream();

  boost::asio::awaitable<bool> Handshake();  // true immediately without TLS
  // Reads at least one byte, or returns an error. At the end of the client's input, `ended` becomes
  // true. The kernel reports the end only once, so later calls return end-of-file immediately,
  // without a system call.
  boost::asio::awaitable<Done> ReadSome(boost::asio::mutable_buffer into);
  boost::asio::awaitable<Done> WriteSome(std::string_view bytes);
  // Closes the sending side.
  boost::asio::awaitable<void> ShutdownSend();

  void Cancel();
  void Close();

  bool is_open() const { return socket_.is_open(); }
  bool ended() const { return ended_; }
  bool secure() const { return tls_ != nullptr; }
  // Socket states, read from the kernel. EndAnnounced: the client has sent a FIN; bytes before the
  // FIN may still be unread. IsReset: the connection is reset, so writes cannot reach the client.
  bool EndAnnounced() const;
  bool IsReset() const;

  auto get_executor() { return socket_.get_executor(); }

 private:
  struct Tls;
  Socket socket_;
  bool ended_ = false;
  std::unique_ptr<Tls> tls_;
};

// "127.0.0.1:51234", "[::1]:51234", "unix"; "unknown" if the client has disconnected.
std::string PeerName(const ClientStream::Socket& socket);

// Formats host and port as in a URL: "127.0.0.1:80", "[::1]:80".
inline std::string HostPort(std::string_view host, int port) {
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return is_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace switchyard::http
