// Keyed hashes and random numbers for authentication.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

using Digest = std::array<uint8_t, 32>;

// HMAC-SHA-256 (RFC 2104). The key may have any length.
Digest HmacSha256(std::string_view key, std::string_view message);
// A key for one purpose, derived from a secret: 32 bytes that reveal neither the secret nor the
// keys of other labels.
std::string DeriveKey(std::string_view secret, std::string_view label);
// Compares in constant time, so that the time does not reveal which bytes differ.
bool SameDigest(const Digest& a, const Digest& b);
void FillRandom(std::span<uint8_t> bytes);  // from the kernel's generator, for keys and nonces

}  // namespace switchyard
