#include <openssl/evp.h>

#include <array>

#include "core/error.h"
#include "core/verify_files.h"

namespace switchyard {
namespace {

void Check(bool done) {
  if (!done) throw Resource("libcrypto cannot compute SHA-256");
}

std::string Hex(const unsigned char* bytes, size_t count) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    out += kHex[bytes[i] >> 4];
    out += kHex[bytes[i] & 15];
  }
  return out;
}

}  // namespace

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context{EVP_MD_CTX_new(),
                                                                  &EVP_MD_CTX_free};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  EVP_MD_CTX* context = state_->context.get();
  Check(context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Add(const void* bytes, size_t count) {
  Check(EVP_DigestUpdate(state_->context.get(), bytes, count) == 1);
}

std::string Sha256::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  Check(EVP_DigestFinal_ex(state_->context.get(), digest.data(), &size) == 1);
  return Hex(digest.data(), size);
}

std::string Sha256Of(std::string_view bytes) {
  Sha256 sum;
  sum.Add(bytes.data(), bytes.size());
  return sum.Finish();
}

}  // namespace switchyard
