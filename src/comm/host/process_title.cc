#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "comm/host/rank_processes.h"

namespace switchyard {

// The kernel shows as title the memory in which it stored argv. If the last byte of this memory is
// not zero, the kernel reads on into the environment that follows. So a title may use the memory of
// both, after the strings of the environment are copied elsewhere (as the setproctitle of the BSDs
// does).
void SetProcessTitle(int argc, char** argv, const std::string& title) {
  if (argc < 1 || argv[0] == nullptr) return;
  char* const begin = argv[0];
  char* end = begin;
  const auto extend = [&](char* text) {
    if (text == end) end = text + std::strlen(text) + 1;
  };
  for (int i = 0; i < argc; ++i) extend(argv[i]);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    char* const text = *entry;
    extend(text);
    // Lives as long as the process: getenv returns pointers into it.
    if (text >= begin && text < end) *entry = strdup(text);
  }
  const size_t room = static_cast<size_t>(end - begin);
  const size_t length = std::min(title.size(), room - 1);
  std::memcpy(begin, title.data(), length);
  std::memset(begin + length, 0, room - length);
  for (int i = 1; i < argc; ++i) argv[i] = begin + length;
  prctl(PR_SET_NAME, title.c_str());
}

}  // namespace switchyard
