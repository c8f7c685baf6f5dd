// Accepts authenticated connections, many concurrently.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/net/handshake.h"
#include "comm/net/tcp.h"

namespace switchyard {

// Performs the acceptor's part of the handshake with every connection of a listener. A connection
// that is slow or sends invalid bytes does not delay the others. A connection that does not
// complete the handshake is closed, and logged once for each host and reason. For one thread; the
// listener must outlive this object.
class AuthenticatedListener {
 public:
  struct Options {
    ConnectionKey key;
    Purpose purpose = Purpose::kNode;
    int32_t self = 0;                           // own node or rank, which openers have to name
    std::function<bool(int32_t from)> expects;  // called after the proof; empty: all are expected
    size_t message_limit = 0;                   // bytes of the opener's message; 0: no message
    std::chrono::milliseconds timeout{
        10'000};               // of a connection, from accept to the end of the message
    size_t max_pending = 256;  // connections with an unfinished handshake
  };
  struct Arrival {
    int32_t from = 0;
    std::string host;     // the opener's address
    TcpStream stream;     // authenticated in both directions
    std::string message;  // see SendMessage
  };

  AuthenticatedListener(TcpListener& listener, Options options);
  ~AuthenticatedListener();

  // The next connection that has completed the handshake and sent its message. Returns nullopt
  // after the limit; unfinished handshakes continue in the next call.
  std::optional<Arrival> Accept(const IoLimit& limit);

  // Why peers of this version were refused, such as "node 1 (10.0.0.2) and node 0 have different
  // secrets". Each reason is listed once; at most 8.
  const std::vector<std::string>& refusals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Sends the length of the message and the message. The opener's message after the handshake has the
// same format.
bool SendMessage(TcpStream& stream, const std::string& message, const IoLimit& limit);
// Receives a message in the format of SendMessage. Nullopt if the connection closes, if the limit
// expires, or if the message is longer than `most`.
std::optional<std::string> ReceiveMessage(TcpStream& stream, size_t most, const IoLimit& limit);

}  // namespace switchyard
