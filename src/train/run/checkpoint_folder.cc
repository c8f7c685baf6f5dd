// Lists and removes the checkpoints of a run.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "train/run/checkpoint.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";

// Steps and paths, ascending.
std::vector<std::pair<int64_t, fs::path>> Checkpoints(const fs::path& output) {
  std::vector<std::pair<int64_t, fs::path>> out;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(output, missing)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !fs::exists(entry.path() / "trainer.json")) continue;
    int64_t step = 0;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (error == std::errc() && stop == end) out.emplace_back(step, entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

fs::path CheckpointPath(const fs::path& output, int64_t step) {
  return output / fmt::format("{}{:06}", kPrefix, step);
}

std::optional<fs::path> LatestCheckpoint(const fs::path& output) {
  const auto all = Checkpoints(output);
  if (all.empty()) return std::nullopt;
  return all.back().second;
}

std::optional<int64_t> LatestStep(const fs::path& output) {
  const auto all = Checkpoints(output);
  if (all.empty()) return std::nullopt;
  return all.back().first;
}

void RemoveOldCheckpoints(const fs::path& output, int keep) {
  if (keep < 1) return;
  const auto all = Checkpoints(output);
  std::error_code ignored;
  for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) {
    fs::remove_all(all[i].second, ignored);
  }
}

}  // namespace switchyard::train
