#include "model/stream_copies.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/cpus.h"
#include "core/parallel.h"
#include "model/weights/expert_loader.h"
#include "model/weights/load_jobs.h"

namespace switchyard {
namespace {

// Conversion is limited by memory bandwidth, which some threads of a host reach.
constexpr int kMaxThreads = 16;

bool KeepsCopies(const ModelOptions& options) {
  return options.gpu && options.moe.stream_tokens > 0;
}

}  // namespace

size_t StreamCopyBytes(const ModelConfig& config, const Mesh& mesh, const ModelOptions& options) {
  if (!KeepsCopies(options)) return 0;
  size_t bytes = 0;
  for (int64_t layer = 0; layer < config.num_layers(); ++layer)
    if (config.layers[layer].moe) bytes += LoadedExpertBytes(config, mesh, layer);
  return bytes * static_cast<size_t>(config.moe->router.num_experts);
}

LoadOptions BeforeStreamCopies(const ModelConfig& config, const Mesh& mesh,
                               const ModelOptions& options) {
  LoadOptions load = options.load;
  const size_t later = StreamCopyBytes(config, mesh, options);
  if (later > 0 && load.progress)
    load.progress = [report = std::move(load.progress), later](size_t done, size_t total) {
      report(done, total + later);
    };
  return load;
}

void ReportPlacing(const ModelConfig& config, const Mesh& mesh, const ModelOptions& options,
                   size_t loaded) {
  if (!options.gpu || !options.load.progress) return;
  options.load.progress(loaded, loaded + StreamCopyBytes(config, mesh, options));
}

void KeepForStreams(const std::vector<std::unique_ptr<MoeLayer>>& layers,
                    const std::filesystem::path& dir, const ModelConfig& config, const Mesh& mesh,
                    const ModelOptions& options, size_t loaded) {
  if (!KeepsCopies(options)) return;
  const ExpertLoader loader(dir, config, mesh, options.load);
  const size_t total = loaded + StreamCopyBytes(config, mesh, options);
  OwnedExpert first;  // all layers have experts of the same sizes (ExpertStream::CheckFits)
  LoadJobs jobs;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i]) continue;
    const auto number = static_cast<int64_t>(i);
    if (jobs.empty()) first = loader.Load(number, 0);
    layers[i]->ReserveStreams(first.weights);
    const size_t bytes = loader.BytesPerExpert(number);
    for (int32_t expert = 0; expert < config.moe->router.num_experts; ++expert)
      jobs.Add(bytes, [&loader, layer = layers[i].get(), number, expert] {
        layer->KeepForStreams(expert, loader.Load(number, expert).weights);
      });
  }
  ThreadPool threads(std::clamp(AllowedCpuCount(), 1, kMaxThreads));
  jobs.Run(threads, loaded, total, options.load.progress);
  for (const auto& layer : layers) {
    if (!layer) continue;
    layer->PinStreams();
    if (options.load.progress) options.load.progress(total, total);
  }
}

}  // namespace switchyard
