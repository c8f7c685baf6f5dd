#include "server/api/base64.h"

#include <algorithm>
#include <cstdint>

namespace switchyard {

std::string Base64(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (j < count ? std::to_integer<uint32_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      out.push_back(j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=');
  }
  return out;
}

}  // namespace switchyard
