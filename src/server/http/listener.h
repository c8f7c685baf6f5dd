// Listening sockets: a TCP port or a Unix socket. Internal to this folder.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <string>

#include "server/http/http_server.h"

namespace switchyard::http {

using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;

// Binds and listens. Replaces a Unix socket file if no server listens on it. Throws Error:
// kResource if the port or file is in use, kInvalid if the host is unknown.
void Listen(const ServerOptions& options, Acceptor& acceptor);

int PortOf(const Acceptor& acceptor);  // 0 for a Unix socket

// Reserves one descriptor, so that connections can be refused when all others are in use.
class SpareDescriptor {
 public:
  SpareDescriptor() { Open(); }
  ~SpareDescriptor() { Close(); }
  SpareDescriptor(const SpareDescriptor&) = delete;
  SpareDescriptor& operator=(const SpareDescriptor&) = delete;

  void Open();
  void Close();

 private:
  int descriptor_ = -1;
};

// Sends a 503 and closes the socket, without waiting. Bytes that do not fit into the socket buffer
// are dropped.
void RefuseConnection(boost::asio::generic::stream_protocol::socket socket);

}  // namespace switchyard::http
