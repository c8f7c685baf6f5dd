// Mutual proof of a shared key at the start of a TCP connection between hosts: keyed hashes,
// messages and the handshake.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "comm/net/tcp.h"

namespace switchyard {

// Keyed hashes and random numbers for authentication.

using Digest = std::array<uint8_t, 32>;

// HMAC-SHA-256 (RFC 2104). The key may have any length.
Digest HmacSha256(std::string_view key, std::string_view message);
// A key for one purpose, derived from a secret: 32 bytes that reveal neither the secret nor the
// keys of other labels.
std::string DeriveKey(std::string_view secret, std::string_view label);
// Compares in constant time, so that the time does not reveal which bytes differ.
bool SameDigest(const Digest& a, const Digest& b);
void FillRandom(std::span<uint8_t> bytes);  // from the kernel's generator, for keys and nonces

// Mutual proof of a shared key at the start of a TCP connection between hosts. Later bytes are
// neither encrypted nor authenticated.

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

namespace switchyard::handshake {

// Messages of the handshake. Internal to comm/net and its tests.
//
//   opener   -> acceptor   Opening
//   acceptor -> opener     Challenge
//   opener   -> acceptor   Digest: the opener's proof
//   acceptor -> opener     Conclusion, with the acceptor's proof
//
// A proof is HMAC-SHA-256(key, role | Opening | Challenge). Both nonces are fresh, so a recorded
// handshake is invalid on another connection. The role is part of the proof, so that a proof cannot
// be reflected to its sender. The opener sends its proof first: a process without the key that
// connects receives no bytes that depend on the key.

using Magic = std::array<char, 8>;  // protocol and version
inline constexpr Magic kMagic = {'Y', 'A', 'R', 'D', 'N', 'E', 'T', '3'};

using Nonce = std::array<uint8_t, 32>;

struct Opening {
  Magic magic = kMagic;
  Introduction introduction;
  uint32_t has_secret = 0;
  Nonce nonce{};
};

// A verdict other than kAccepted ends the handshake.
struct Challenge {
  Magic magic = kMagic;
  Verdict verdict = Verdict::kAccepted;
  uint32_t has_secret = 0;
  Nonce nonce{};
};

struct Conclusion {
  Verdict verdict = Verdict::kAccepted;
  Digest proof{};  // the acceptor's proof, only with kAccepted
};

static_assert(std::has_unique_object_representations_v<Opening>);  // no padding
static_assert(std::has_unique_object_representations_v<Challenge>);
static_assert(std::has_unique_object_representations_v<Conclusion>);

enum class Role { kOpener, kAcceptor };
Digest Prove(const ConnectionKey& key, Role role, const Opening& opening,
             const Challenge& challenge);

}  // namespace switchyard::handshake
