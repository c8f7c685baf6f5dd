// Copies of all experts in host memory, for passes that stream them to a GPU (--stream-experts).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

#include "comm/mesh.h"
#include "model/config.h"
#include "model/options.h"
#include "moe/layer.h"

namespace switchyard {

// Bytes of weights that KeepForStreams loads, as counted by loading progress. 0 on CPUs, and if
// nothing is streamed.
size_t StreamCopyBytes(const ModelConfig& config, const Mesh& mesh, const ModelOptions& options);

// The load options of this rank's own weights, whose progress counts the copies as bytes that are
// not loaded yet. So the progress of a rank has one total.
LoadOptions BeforeStreamCopies(const ModelConfig& config, const Mesh& mesh,
                               const ModelOptions& options);

// On a GPU: reports that another part of the loaded weights is placed, so that other ranks wait.
// `loaded`: bytes of this rank's own weights.
void ReportPlacing(const ModelConfig& config, const Mesh& mesh, const ModelOptions& options,
                   size_t loaded);

// On a GPU with ModelOptions::moe.stream_tokens: loads all experts of each layer, on several
// threads, and keeps them in page-locked memory (MoeLayer::KeepForStreams). `layers`: null for
// layers without experts. `loaded`: bytes of this rank's own weights, for the progress. Throws as
// ExpertLoader, and what the progress throws.
void KeepForStreams(const std::vector<std::unique_ptr<MoeLayer>>& layers,
                    const std::filesystem::path& dir, const ModelConfig& config, const Mesh& mesh,
                    const ModelOptions& options, size_t loaded);

}  // namespace switchyard
