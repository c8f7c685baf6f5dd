// SHA-256 sums, and files verified with a list of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/regular_file.h"

namespace switchyard {

// SHA-256 sums, by libcrypto.

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

// Verifies files with a list of SHA-256 sums in the format of sha256sum.

struct VerifyOptions {
  // Called by the threads of VerifyFiles, never concurrently. `done`: bytes read so far; `total`:
  // bytes of all files.
  std::function<void(uint64_t done, uint64_t total)> progress;
  // Polled by each thread after every 4 MiB, concurrently. True ends the verification.
  std::function<bool()> cancelled;
  int threads = 1;
};

// Compares files of `dir` with the sums in `list`. A line has 64 hexadecimal digits, a space, a
// space or an asterisk, and a file name. Names are absolute, or relative to `dir`. All files of
// `required` must be listed; other listed files are compared if they exist. Throws Error kInvalid
// that names a file that is not listed or has another sum. Also throws RegularFile's errors.
// Returns false if cancelled.
bool VerifyFiles(const std::filesystem::path& dir, const std::vector<FileStamp>& required,
                 const std::filesystem::path& list, const VerifyOptions& options = {});

}  // namespace switchyard
