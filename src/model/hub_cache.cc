// Layout of the cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
#include "model/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "core/error.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// An empty variable counts as unset. "~" is the home directory.
std::optional<fs::path> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  const std::string text = value;
  const char* home = std::getenv("HOME");
  if (home != nullptr && (text == "~" || text.starts_with("~/"))) return home + text.substr(1);
  return text;
}

bool IsNamePart(std::string_view part) {
  constexpr size_t kMaxLength = 96;  // the hub's limit
  return !part.empty() && part.size() <= kMaxLength && part.front() != '.' && part.front() != '-' &&
         std::ranges::all_of(part, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

bool IsHubId(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return IsNamePart(text);
  return IsNamePart(text.substr(0, slash)) && IsNamePart(text.substr(slash + 1));
}

// The name of a model's folder in the cache: models--ORG--NAME.
std::string FolderOf(const std::string& id) {
  std::string name = "models--";
  for (const char c : id) name += c == '/' ? std::string("--") : std::string(1, c);
  return name;
}

// The commit of a branch or tag, or `revision` itself.
std::string CommitOf(const fs::path& model, const std::string& revision) {
  std::ifstream ref(model / "refs" / revision);
  std::string commit;
  return ref >> commit ? commit : revision;
}

}  // namespace

fs::path HubCacheDirectory() {
  if (const auto cache = Variable("HF_HUB_CACHE")) return *cache;
  if (const auto cache = Variable("HUGGINGFACE_HUB_CACHE")) return *cache;
  if (const auto home = Variable("HF_HOME")) return *home / "hub";
  if (const auto cache = Variable("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  return Variable("HOME").value_or("/") / ".cache" / "huggingface" / "hub";
}

fs::path ResolveCheckpoint(const fs::path& path, const std::string& revision,
                           const fs::path& cache) {
  std::error_code error;
  const bool named = path.extension() == ".gguf";  // a GGUF file, even if it is missing
  if (path.empty() || named || fs::exists(path, error) || !IsHubId(path.string())) return path;
  const fs::path hub = cache.empty() ? HubCacheDirectory() : cache;
  const fs::path model = hub / FolderOf(path.string());
  if (!fs::is_directory(model, error)) {
    throw NotFound(
        "{0}: no such directory, and the hub's cache {1} (HF_HUB_CACHE, HF_HOME) has no "
        "model of this id; download it with: hf download {0}",
        path.string(), hub.string());
  }
  const bool plain = !revision.empty() && revision.find("..") == std::string::npos;
  fs::path snapshot = model / "snapshots" / CommitOf(model, revision);
  if (!plain || !fs::is_directory(snapshot, error)) {
    throw NotFound(
        "{0}: the hub's cache {1} has no snapshot of revision {2} (--revision); download it with: "
        "hf download {0} --revision {2}",
        path.string(), hub.string(), revision);
  }
  return snapshot;
}

}  // namespace switchyard
