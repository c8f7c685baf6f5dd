// Finds checkpoints by their id on the Hugging Face hub in the local cache of its tools.
#pragma once

#include <filesystem>
#include <string>

namespace switchyard {

// The directory of the hub's cache: the first that is set of HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE,
// HF_HOME/hub and XDG_CACHE_HOME/huggingface/hub; else ~/.cache/huggingface/hub.
std::filesystem::path HubCacheDirectory();

// Returns `path` if the directory or file exists, or if it is named like a GGUF file. If it has the
// form of an id (ORG/NAME or NAME), returns its snapshot in `cache` (empty: HubCacheDirectory())
// for `revision`: a branch, tag or commit. Other paths are returned unchanged. Downloads nothing.
// Error kNotFound names what is missing and the download command.
std::filesystem::path ResolveCheckpoint(const std::filesystem::path& path,
                                        const std::string& revision = "main",
                                        const std::filesystem::path& cache = {});

}  // namespace switchyard
