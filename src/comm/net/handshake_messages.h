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
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "comm/net/handshake.h"
#include "comm/net/hmac.h"

namespace switchyard::handshake {

using Magic = std::array<char, 8>;  // protocol and version
inline constexpr Magic kMagic = {'Y', 'A', 'R', 'D', 'N', 'E', 'T', '2'};

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
