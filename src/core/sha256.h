// SHA-256 sums, by libcrypto.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace switchyard {

// Computes one SHA-256 sum incrementally. For use by one thread.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(const void* bytes, size_t count);
  std::string Finish();  // 64 lower-case hexadecimal digits; call once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string Sha256Of(std::string_view bytes);

}  // namespace switchyard
