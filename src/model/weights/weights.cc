#include "model/weights.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "model/families/family.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

// Notes which names are asked for, so that the rest can be told.
class NotingSource : public WeightSource {
 public:
  explicit NotingSource(WeightSource& source) : source_(source) {}
  bool Has(const std::string& name) const override { return source_.Has(name); }
  WeightView Matrix(const MatrixRequest& request) override {
    names_.insert(request.name);
    return source_.Matrix(request);
  }
  void Vector(const VectorRequest& request, std::span<float> out) override {
    names_.insert(request.name);
    source_.Vector(request, out);
  }
  void Finish(const Progress& progress) override { source_.Finish(progress); }

  // Scales and blocks belong to the matrix they stand beside.
  bool Used(std::string_view name) const {
    for (std::string_view suffix : {"_scale_inv", "_blocks", "_scales"}) {
      if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
    }
    return names_.contains(name);
  }

 private:
  WeightSource& source_;
  std::set<std::string, std::less<>> names_;
};

// Layers past the last: multi-token prediction, which DeepSeek's and GLM's checkpoints carry.
bool IsExtraLayer(std::string_view name, const std::string& layers, int64_t num_layers) {
  if (!name.starts_with(layers)) return false;
  name.remove_prefix(layers.size());
  int64_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  return error == std::errc() && index >= num_layers;
}

void LogUnused(const Checkpoint& checkpoint, const ModelConfig& config,
               const NotingSource& source) {
  const std::string layers = FindFamily(config.architecture)->names(config).layers;
  size_t extra = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (source.Used(name) || name.ends_with("rotary_emb.inv_freq")) continue;
    if (IsExtraLayer(name, layers, config.num_layers())) {
      ++extra;
    } else {
      LOG_DEBUG("{}: tensor \"{}\" is not used", tensor.file, name);
    }
  }
  if (extra != 0) {
    LOG_INFO("{}: {} tensors of multi-token-prediction layers are not used",
             checkpoint.dir().string(), extra);
  }
}

// Ranks share the host; each fills its own memory.
int FillThreads(const Mesh& mesh) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores / mesh.tp(), 1, 16);
}

}  // namespace

ModelWeights LoadWeights(const std::filesystem::path& dir, const ModelConfig& config,
                         const Mesh& mesh, const LoadOptions& options) {
  const auto load = [&](WeightSource& source) {
    ModelWeights weights = BuildWeights(config, mesh, options.whole_shared_expert, source);
    source.Finish(options.progress);
    return weights;
  };
  if (options.load_format == "dummy") {
    return load(*MakeDummySource(config, options.dummy_seed, FillThreads(mesh)));
  }
  if (options.load_format != "auto" && options.load_format != "safetensors") {
    throw Invalid("--load-format {} is unknown; want auto, safetensors or dummy",
                  options.load_format);
  }
  const Checkpoint checkpoint(dir);
  return load(
      *MakeCheckpointSource(checkpoint, config, {.check_nan_scales = options.check_nan_scales}));
}

size_t CheckCheckpoint(const std::filesystem::path& dir, const ModelConfig& config) {
  const Checkpoint checkpoint(dir);
  const auto headers = MakeCheckpointSource(checkpoint, config, {.read_data = false});
  NotingSource source(*headers);
  const ModelWeights weights = BuildWeights(config, Mesh(), false, source);
  source.Finish({});
  LogUnused(checkpoint, config, source);
  return weights.bytes_mapped;
}

size_t WeightBytesPerRank(const ModelConfig& config, const Mesh& mesh, bool whole_shared_expert) {
  return BuildWeights(config, mesh, whole_shared_expert, *MakeCountingSource(config)).bytes_mapped;
}

}  // namespace switchyard
