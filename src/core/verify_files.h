// Files against a list of their SHA-256 sums, as sha256sum writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "core/regular_file.h"

namespace switchyard {

struct VerifyOptions {
  // Called from threads of VerifyFiles, one at a time: bytes that have been read, and of all files.
  std::function<void(uint64_t done, uint64_t total)> progress;
  // Asked every few megabytes, from any thread; true ends the work.
  std::function<bool()> cancelled;
  int threads = 1;
};

// Compares files of `dir` with `list`: lines of 64 hexadecimal digits, a space, a space or a star,
// and a name. Names are relative to `dir`; a list that was made elsewhere may have absolute names.
// `required` must be in the list. Other files of the list are compared where `dir` has them. Throws
// Error kInvalid that names the file which the list lacks, or whose sum differs; also all errors of
// RegularFile. False: cancelled.
bool VerifyFiles(const std::filesystem::path& dir, const std::vector<FileStamp>& required,
                 const std::filesystem::path& list, const VerifyOptions& options = {});

}  // namespace switchyard
