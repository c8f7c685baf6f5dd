#include "server/http/listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>

#include "core/error.h"
#include "server/http/client_stream.h"
#include "server/http/error_body.h"
#include "server/http/responses.h"

namespace switchyard::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Local = asio::local::stream_protocol;

Error ListenError(const error_code& ec, const ServerOptions& options) {
  if (!options.uds.empty())
    return Resource("--uds {}: cannot listen on this path ({})", options.uds, ec.message());
  if (ec == asio::error::address_in_use) {
    return Error(ErrorKind::kResource, fmt::format("port {} is in use", options.port),
                 "choose another port with --port, or stop the program that uses this port");
  }
  if (ec == asio::error::access_denied) {
    return Error(ErrorKind::kResource, fmt::format("no permission to use port {}", options.port),
                 "ports below 1024 require root privileges; choose another port with --port");
  }
  return Invalid("cannot listen on {}: {} (does --host name an address of this machine?)",
                 HostPort(options.host, options.port), ec.message());
}

// A server that was killed leaves its socket file behind.
void RemoveStaleSocket(const std::string& path, const asio::any_io_executor& executor) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return;
  if (!S_ISSOCK(found.st_mode))
    throw Invalid("--uds {}: the file exists and is not a socket", path);
  Local::socket probe(executor);
  error_code ec;
  probe.connect(Local::endpoint(path), ec);
  if (!ec) throw Resource("--uds {}: another server listens on this path", path);
  unlink(path.c_str());
}

asio::generic::stream_protocol::endpoint Resolve(const ServerOptions& options,
                                                 const asio::any_io_executor& executor) {
  error_code ec;
  tcp::resolver resolver(executor);
  const auto found = resolver.resolve(options.host, std::to_string(options.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, ec);
  if (ec || found.empty()) {
    throw Invalid("--host {}: unknown host ({})", options.host, ec.message());
  }
  return found.begin()->endpoint();
}

}  // namespace

void Listen(const ServerOptions& options, Acceptor& acceptor) {
  error_code ec;
  const bool is_local = !options.uds.empty();
  if (options.uds.size() >= sizeof(sockaddr_un::sun_path))
    throw Invalid("--uds {}: the path is too long for a socket", options.uds);
  if (is_local) RemoveStaleSocket(options.uds, acceptor.get_executor());
  const asio::generic::stream_protocol::endpoint endpoint =
      is_local ? asio::generic::stream_protocol::endpoint(Local::endpoint(options.uds))
               : Resolve(options, acceptor.get_executor());
  acceptor.open(asio::generic::stream_protocol(endpoint.data()->sa_family, 0), ec);
  // Permits a restart while old connections of the port are in TIME_WAIT.
  if (!ec && !is_local) acceptor.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) throw ListenError(ec, options);
}

int PortOf(const Acceptor& acceptor) {
  const auto endpoint = acceptor.local_endpoint();
  const auto* address = reinterpret_cast<const sockaddr*>(endpoint.data());
  if (address->sa_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  if (address->sa_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port);
  return 0;
}

void SpareDescriptor::Open() {
  if (descriptor_ < 0) descriptor_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void SpareDescriptor::Close() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

void RefuseConnection(asio::generic::stream_protocol::socket socket) {
  const std::string body = ErrorBody(503, "The server has reached its connection limit");
  const std::string response = Serialize({.status = 503,
                                          .content_type = kJson,
                                          .extra = {{"Retry-After", "1"}},
                                          .length = body.size(),
                                          .chunked = false,
                                          .keep_alive = false}) +
                               body;
  error_code ignored;
  socket.non_blocking(true, ignored);
  char request[4096];  // unread input would turn the close into a reset
  socket.read_some(asio::buffer(request), ignored);
  socket.write_some(asio::buffer(response), ignored);
  socket.shutdown(asio::socket_base::shutdown_both, ignored);
}

}  // namespace switchyard::http
