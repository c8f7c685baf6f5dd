#include "core/verify_files.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxListBytes = 64 << 20;
constexpr size_t kDigits = 64;  // hexadecimal digits of a sum

using Sums = std::map<fs::path, std::string>;  // absolute path -> lower-case digits

// Decodes the file name of a line that starts with a backslash. In such a name, \\, \n and \r stand
// for a backslash, a line feed and a carriage return.
std::string Unescape(std::string_view name) {
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    char c = name[i];
    if (c == '\\' && i + 1 < name.size()) {
      c = name[++i];
      if (c == 'n') c = '\n';
      if (c == 'r') c = '\r';
    }
    out += c;
  }
  return out;
}

// Returns the file name and the sum of a line; nullopt if it is malformed.
std::optional<std::pair<std::string, std::string>> ParseLine(std::string_view line) {
  const bool escaped = line.starts_with('\\');
  if (escaped) line.remove_prefix(1);
  if (line.size() < kDigits + 3 || line[kDigits] != ' ') return std::nullopt;
  if (line[kDigits + 1] != ' ' && line[kDigits + 1] != '*') return std::nullopt;
  std::string sum(line.substr(0, kDigits));
  for (char& c : sum) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
    if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return std::nullopt;
  }
  const std::string_view name = line.substr(kDigits + 2);
  return std::pair(escaped ? Unescape(name) : std::string(name), std::move(sum));
}

fs::path InDirectory(const fs::path& dir, const fs::path& name) {
  return fs::absolute(dir / name).lexically_normal();
}

Sums ReadSums(const fs::path& dir, const fs::path& list) {
  const std::string text = ReadRegularFile(list, kMaxListBytes);
  Sums sums;
  for (size_t at = 0, number = 1; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    const auto entry = ParseLine(line);
    if (!entry) {
      throw Invalid(
          "{}, line {}: want 64 hexadecimal digits, two spaces and a file name, as printed by "
          "sha256sum",
          list.string(), number);
    }
    const auto [it, added] = sums.emplace(InDirectory(dir, entry->first), entry->second);
    if (!added && it->second != entry->second) {
      throw Invalid("{}, line {}: {} is listed with two different sums", list.string(), number,
                    entry->first);
    }
  }
  return sums;
}

// State of one call of VerifyFiles, on its stack. Its threads take files from a shared counter, the
// largest first.
class Verification {
 public:
  struct File {
    fs::path path;
    uint64_t bytes;
    std::string sum;  // SHA-256 sum in the list
  };

  Verification(std::vector<File> files, const fs::path& list, const VerifyOptions& options)
      : files_(std::move(files)), list_(list), options_(options) {
    std::ranges::sort(files_, std::greater(), &File::bytes);
    for (const File& file : files_) total_ += file.bytes;
  }

  bool Run() {
    {
      const size_t threads =
          std::clamp<size_t>(files_.size(), 1, static_cast<size_t>(std::max(options_.threads, 1)));
      std::vector<std::jthread> others;
      for (size_t i = 1; i < threads; ++i) others.emplace_back([this] { Work(); });
      Work();
    }
    if (failure_) std::rethrow_exception(failure_);
    return !cancelled_;
  }

 private:
  static constexpr size_t kBlock = 4 << 20;

  void Work() {
    try {
      std::vector<char> block(kBlock);
      for (size_t i = next_++; i < files_.size() && !stop_; i = next_++) Verify(files_[i], &block);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      stop_ = true;
    }
  }

  void Verify(const File& listed, std::vector<char>* block) {
    const RegularFile file(listed.path);
    Sha256 sha;
    for (;;) {
      if (stop_) return;
      if (options_.cancelled && options_.cancelled()) {
        cancelled_ = stop_ = true;
        return;
      }
      const ssize_t got = read(file.fd(), block->data(), block->size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        throw NotFound("{}: cannot be read: {}", listed.path.string(), std::strerror(errno));
      if (got == 0) break;
      sha.Add(block->data(), static_cast<size_t>(got));
      const std::lock_guard lock(mutex_);
      done_ += static_cast<uint64_t>(got);
      if (options_.progress) options_.progress(std::min(done_, total_), total_);
    }
    const std::string sum = sha.Finish();
    if (sum != listed.sum) {
      throw Invalid("{}: its SHA-256 sum is {}, but {} lists {}", listed.path.string(), sum,
                    list_.string(), listed.sum);
    }
  }

  std::vector<File> files_;
  const fs::path& list_;
  const VerifyOptions& options_;
  uint64_t total_ = 0;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false}, cancelled_{false};
  std::mutex mutex_;  // guards the members below
  uint64_t done_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

bool VerifyFiles(const fs::path& dir, const std::vector<FileStamp>& required, const fs::path& list,
                 const VerifyOptions& options) {
  Sums sums = ReadSums(dir, list);
  std::vector<Verification::File> files;
  for (const FileStamp& file : required) {
    const auto listed = sums.find(InDirectory(dir, fs::absolute(file.path)));
    if (listed == sums.end())
      throw Invalid("{}: {} is not listed", list.string(), file.path.string());
    files.push_back({listed->first, file.size, listed->second});
    sums.erase(listed);
  }
  for (const auto& [path, sum] : sums) {
    std::error_code missing;
    if (!fs::exists(path, missing)) continue;
    files.push_back({path, RegularFile(path).size(), sum});
  }
  return Verification(std::move(files), list, options).Run();
}

}  // namespace switchyard
