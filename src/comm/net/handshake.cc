#include "comm/net/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <chrono>
#include <thread>

#include "core/check.h"
#include "core/format.h"

namespace switchyard {

Digest HmacSha256(std::string_view key, std::string_view message) {
  Digest digest;
  unsigned size = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(),
             digest.data(), &size) != nullptr);
  CHECK_EQ(size, digest.size());
  return digest;
}

std::string DeriveKey(std::string_view secret, std::string_view label) {
  const Digest digest = HmacSha256(secret, label);
  return {digest.begin(), digest.end()};
}

bool SameDigest(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void FillRandom(std::span<uint8_t> bytes) {
  CHECK_LE(bytes.size(), 256u);  // getrandom may return early for more than 256 bytes
  CHECK_EQ(getrandom(bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
}

namespace {

using namespace handshake;
using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetryInterval(100);
constexpr std::string_view kPublicKey = "switchyard without a secret";

template <typename T>
IoResult SendObject(TcpStream& stream, T& object, const IoLimit& limit) {
  iovec part{&object, sizeof object};
  return stream.Send({&part, 1}, limit);
}

HandshakeResult ReceiveChallenge(TcpStream& stream, Challenge* challenge, const IoLimit& limit) {
  // Receives only the magic number at first, because the answer of another program may be shorter
  // than a Challenge.
  IoResult io = stream.Receive(&challenge->magic, sizeof challenge->magic, limit);
  if (io != IoResult::kDone) return {io};
  if (challenge->magic != kMagic) return {.verdict = Verdict::kForeign};
  constexpr size_t kRest = sizeof(Challenge) - sizeof(Magic);
  io = stream.Receive(reinterpret_cast<char*>(challenge) + sizeof(Magic), kRest, limit);
  return {io, challenge->verdict};
}

Verdict Checked(Verdict received) {
  return received < Verdict::kForeign ? received : Verdict::kForeign;
}

}  // namespace

namespace handshake {

Digest Prove(const ConnectionKey& key, Role role, const Opening& opening,
             const Challenge& challenge) {
  std::string message = role == Role::kOpener ? "opener  " : "acceptor";
  message.append(reinterpret_cast<const char*>(&opening), sizeof opening);
  message.append(reinterpret_cast<const char*>(&challenge), sizeof challenge);
  return HmacSha256(key.bytes, message);
}

}  // namespace handshake

ConnectionKey ConnectionKey::Of(std::string_view secret, std::string_view label) {
  if (secret.empty()) return {std::string(kPublicKey), false};
  return {DeriveKey(secret, label), true};
}

std::string Introduction::NameOf(int32_t number) const {
  if (purpose == Purpose::kKv) return number == 0 ? "the prefill worker" : "a decode worker";
  return fmt::format("{} {}", purpose == Purpose::kRank ? "rank" : "node", number);
}

std::string DescribeVerdict(Verdict verdict, const std::string& opener,
                            const std::string& acceptor) {
  switch (verdict) {
    case Verdict::kAccepted:
      break;
    case Verdict::kSecretWanted:
      return fmt::format("{} has a secret and {} has none", acceptor, opener);
    case Verdict::kNoSecret:
      return fmt::format("{} has a secret and {} has none", opener, acceptor);
    case Verdict::kWrongSecret:
      return fmt::format("{} and {} have different secrets", opener, acceptor);
    case Verdict::kUnexpected:
      return fmt::format("{} does not expect {}", acceptor, opener);
    case Verdict::kForeign:
      return fmt::format("{} runs another program or version than {}", acceptor, opener);
  }
  CHECK(false);
}

HandshakeResult OpenHandshake(TcpStream& stream, const ConnectionKey& key,
                              const Introduction& introduction, const IoLimit& limit) {
  Opening opening{.introduction = introduction, .has_secret = key.is_secret};
  FillRandom(opening.nonce);
  IoResult io = SendObject(stream, opening, limit);
  if (io != IoResult::kDone) return {io};

  Challenge challenge;
  HandshakeResult result = ReceiveChallenge(stream, &challenge, limit);
  result.verdict = Checked(result.verdict);
  if (result.io != IoResult::kDone || result.verdict != Verdict::kAccepted) return result;
  if (challenge.has_secret != opening.has_secret) {
    return {.verdict = key.is_secret ? Verdict::kNoSecret : Verdict::kSecretWanted};
  }

  Digest proof = Prove(key, Role::kOpener, opening, challenge);
  io = SendObject(stream, proof, limit);
  if (io != IoResult::kDone) return {io};
  Conclusion conclusion;
  io = stream.Receive(&conclusion, sizeof conclusion, limit);
  if (io != IoResult::kDone) return {io};
  if (conclusion.verdict != Verdict::kAccepted) return {.verdict = Checked(conclusion.verdict)};
  if (!SameDigest(conclusion.proof, Prove(key, Role::kAcceptor, opening, challenge))) {
    return {.verdict = Verdict::kWrongSecret};
  }
  return {};
}

OpenedConnection OpenAuthenticated(const HostPort& peer, const ConnectionKey& key,
                                   const Introduction& introduction, const IoLimit& limit) {
  OpenedConnection opened;
  for (;;) {
    std::optional<TcpStream> stream = TcpStream::Connect(peer, limit);
    if (!stream) return opened;
    opened.connected = true;
    const HandshakeResult result = OpenHandshake(*stream, key, introduction, limit);
    if (result.io == IoResult::kDone) {
      opened.verdict = result.verdict;
      if (result.verdict == Verdict::kAccepted) opened.stream = std::move(stream);
      return opened;
    }
    if (result.io != IoResult::kClosed || steady_clock::now() >= limit.until) return opened;
    if (limit.stop && limit.stop()) return opened;
    std::this_thread::sleep_for(kRetryInterval);
  }
}

}  // namespace switchyard
