#include "train/cuda/refuse.h"

#include "core/error.h"

namespace switchyard::train::gpu {

void Refuse(std::string message, std::initializer_list<int64_t> numbers) {
  size_t at = 0;
  for (const int64_t number : numbers) {
    at = message.find("{}", at);
    if (at == std::string::npos) break;
    const std::string text = std::to_string(number);
    message.replace(at, 2, text);
    at += text.size();
  }
  throw Error(ErrorKind::kInvalid, message);
}

}  // namespace switchyard::train::gpu
