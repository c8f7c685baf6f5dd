// Checkpoints by their id on the Hugging Face hub, where its tools have left them on this machine.
#pragma once

#include <filesystem>
#include <string>

namespace switchyard {

// The directory of the hub's cache: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub, the first whose variable is set.
std::filesystem::path HubCacheDirectory();

// `path` where such a directory exists. Else, where it is written like an id (ORG/NAME or NAME),
// its snapshot in `cache` (empty: HubCacheDirectory()) for `revision`: a branch, tag or commit.
// Nothing is downloaded. Error kNotFound says what is missing and how to get it. A path that is
// written like none stays as it is.
std::filesystem::path ResolveCheckpoint(const std::filesystem::path& path,
                                        const std::string& revision = "main",
                                        const std::filesystem::path& cache = {});

}  // namespace switchyard
