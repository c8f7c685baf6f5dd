#include "model/quantizer/state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/bounded_json.h"
#include "core/error.h"
#include "core/json.h"
#include "core/regular_file.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxStateBytes = 256 << 20;

// Whether the directory has no files, except a state whose first version was not finished.
bool IsNew(const fs::path& dir) {
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename() != std::string(QuantizeState::kFile) + ".part") return false;
  }
  return true;
}

}  // namespace

QuantizeState::QuantizeState(fs::path dir, std::string key)
    : dir_(std::move(dir)), key_(std::move(key)) {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) throw Resource("{}: cannot be created: {}", dir_.string(), error.message());
  lock_ = ::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) throw Resource("{}: cannot be opened: {}", dir_.string(), std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    throw Error(ErrorKind::kBusy,
                fmt::format("{}: another process is writing to it", dir_.string()));
  }
  try {
    const auto text = ReadRegularFileIfExists(dir_ / kFile, kMaxStateBytes);
    if (text) {
      Read(*text);
    } else if (!IsNew(dir_)) {
      throw Invalid("{}: is not empty and holds no unfinished run ({}); name a new directory",
                    dir_.string(), kFile);
    } else {
      Write();
    }
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

QuantizeState::~QuantizeState() { ::close(lock_); }

void QuantizeState::Read(const std::string& text) {
  const std::string file = (dir_ / kFile).string();
  const json state = ParseBoundedJson(text, file);
  try {
    if (state.at("key").get<std::string>() != key_) {
      throw Invalid(
          "{}: is of another checkpoint or other settings; use the same command to continue, or "
          "remove {}",
          file, dir_.string());
    }
    for (const auto& [name, shard] : state.at("shards").items()) {
      shards_[name] = {shard.at("sha256").get<std::string>(),
                       PackingReport::FromSums(shard.at("errors"), file)};
    }
  } catch (const json::exception&) {
    throw Invalid("{}: is malformed; remove {} to begin again", file, dir_.string());
  }
}

void QuantizeState::Write() const {
  json shards = json::object();
  for (const auto& [name, shard] : shards_) {
    shards[name] = {{"sha256", shard.sha256}, {"errors", shard.errors.Sums()}};
  }
  const json state = {{"key", key_}, {"shards", std::move(shards)}};
  WriteWholeFile(dir_ / kFile, state.dump() + "\n");
}

const PackingReport* QuantizeState::Finished(const std::string& file) {
  const auto it = shards_.find(file);
  if (it == shards_.end()) return nullptr;
  if (fs::exists(dir_ / file) && Sha256OfFile(dir_ / file) == it->second.sha256) {
    return &it->second.errors;
  }
  shards_.erase(it);
  return nullptr;
}

void QuantizeState::Add(const std::string& file, WrittenShard shard) {
  shards_[file] = std::move(shard);
  Write();
}

void QuantizeState::Remove() {
  std::error_code error;
  if (!fs::remove(dir_ / kFile, error)) {
    throw Resource("{}: cannot be removed: {}", (dir_ / kFile).string(), error.message());
  }
}

}  // namespace switchyard
