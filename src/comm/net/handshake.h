// Mutual proof of a shared key at the start of a TCP connection between hosts. Later bytes are
// neither encrypted nor authenticated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/net/tcp.h"

namespace switchyard {

struct ConnectionKey {
  std::string bytes;
  bool is_secret = false;  // false: the key that all builds of this version have

  // Derived from a secret for connections of one purpose. An empty secret gives a key that every
  // build of this version has.
  static ConnectionKey Of(std::string_view secret, std::string_view label);
};

// Kind of the two ends. kKv: 0 is a prefill worker, 1 a decode worker.
enum class Purpose : uint32_t { kNode = 1, kRank = 2, kKv = 3 };

// Identifies the two ends of a connection. Part of both proofs.
struct Introduction {
  Purpose purpose = Purpose::kNode;
  int32_t from = 0, to = 0;  // node or rank of the opener and of the acceptor

  std::string NameOf(int32_t number) const;  // "node 1", "rank 2"
};

// An acceptor's decision, sent to the opener.
enum class Verdict : uint32_t {
  kAccepted,
  kSecretWanted,  // the acceptor has a secret, the opener none
  kNoSecret,      // the opener has a secret, the acceptor none
  kWrongSecret,   // the two secrets differ
  kUnexpected,    // the acceptor expects no connection with this introduction
  kForeign,       // not sent: the other end runs another program or version
};
// "node 1 has a secret and node 0 has none". Not for kAccepted.
std::string DescribeVerdict(Verdict verdict, const std::string& opener,
                            const std::string& acceptor);

// Result for the opener. If `io` is not kDone, the handshake did not complete.
struct HandshakeResult {
  IoResult io = IoResult::kDone;
  Verdict verdict = Verdict::kAccepted;
};
// The opener's part, on a new connection. Blocks within the limit.
HandshakeResult OpenHandshake(TcpStream& stream, const ConnectionKey& key,
                              const Introduction& introduction, const IoLimit& limit);

struct OpenedConnection {
  std::optional<TcpStream> stream;       // authenticated in both directions
  Verdict verdict = Verdict::kAccepted;  // kAccepted without a stream: no handshake completed
  bool connected = false;                // something listens at the address
};
// Connects and performs the opener's part. Retries until the limit if nothing listens, or if the
// connection closes within the handshake. An acceptor with too many open connections closes some.
// Error kInvalid as from TcpStream::Connect.
OpenedConnection OpenAuthenticated(const HostPort& peer, const ConnectionKey& key,
                                   const Introduction& introduction, const IoLimit& limit);

}  // namespace switchyard
