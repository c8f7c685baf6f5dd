#include "comm/net/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "core/check.h"

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

}  // namespace switchyard
