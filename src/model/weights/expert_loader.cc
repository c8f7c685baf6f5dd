#include "model/weights/expert_loader.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "model/families/family.h"
#include "model/weights/parts.h"
#include "model/weights/stored_weights.h"

namespace switchyard {
namespace {

// An expert, the owners of its biases, and its bytes.
struct Built {
  kernels::ExpertWeights weights;
  std::vector<Tensor> owned;
  size_t bytes = 0;
};

Built BuildOne(WeightSource& source, const BuildContext& context, int64_t layer, int32_t expert) {
  Parts parts(context, source);
  Built built;
  const std::string prefix = LayerPrefix(parts, layer);
  built.weights = BuildExperts(parts, prefix, {&expert, 1}, &built.owned).front();
  built.bytes = static_cast<size_t>(std::llround(parts.bytes()));
  return built;
}

}  // namespace

struct ExpertLoader::Impl {
  Impl(const std::filesystem::path& dir, const ModelConfig& model, const Mesh& ranks,
       const LoadOptions& load)
      : config(model),
        mesh(ranks),
        names(NamesOf(config)),
        dummy(load.load_format == "dummy"),
        seed(load.dummy_seed),
        check_nan_scales(load.check_nan_scales) {
    if (!dummy) stored.emplace(dir);
  }

  // A source that allocates its memory in one piece of `bytes`.
  std::unique_ptr<WeightSource> Source(size_t bytes) const {
    constexpr size_t kRounding = size_t{16} << 10;  // for rounding to cache lines, and small scales
    if (dummy) return MakeDummySource(config, seed, 1, bytes + kRounding);
    return stored->MakeSource(
        config,
        {.check_nan_scales = check_nan_scales, .log = false, .slab_bytes = bytes + kRounding});
  }

  Built Build(WeightSource& source, int64_t layer, int32_t expert) const {
    return BuildOne(source, {config, mesh, names}, layer, expert);
  }

  const ModelConfig config;
  const Mesh mesh;
  const TensorNames names;
  const bool dummy;
  const uint64_t seed;
  const bool check_nan_scales;
  std::optional<StoredWeights> stored;
};

ExpertLoader::ExpertLoader(const std::filesystem::path& dir, const ModelConfig& config,
                           const Mesh& mesh, const LoadOptions& options)
    : impl_(std::make_unique<Impl>(dir, config, mesh, options)) {}
ExpertLoader::~ExpertLoader() = default;

// Uses a separate source for each expert. So each expert owns its memory, and no slab contains
// several experts.
OwnedExpert ExpertLoader::Load(int64_t layer, int32_t expert) const {
  const std::unique_ptr<WeightSource> source = impl_->Source(BytesPerExpert(layer));
  Built built = impl_->Build(*source, layer, expert);
  source->Finish({});
  std::shared_ptr<const void> owner;
  if (!built.owned.empty())
    owner = std::make_shared<const std::vector<Tensor>>(std::move(built.owned));
  return {std::move(built.weights), std::move(owner)};
}

bool ExpertLoader::Converts() const {
  if (impl_->dummy) return true;
  const auto& layers = impl_->config.layers;
  const auto first = std::ranges::find_if(layers, [](const auto& layer) { return layer.moe; });
  CHECK(first != layers.end());
  const OwnedExpert expert = Load(first - layers.begin(), 0);
  return !impl_->stored->Maps(static_cast<const uint8_t*>(expert.weights.gate.data));
}

size_t ExpertLoader::BytesPerExpert(int64_t layer) const {
  return LoadedExpertBytes(impl_->config, impl_->mesh, layer);
}

size_t LoadedExpertBytes(const ModelConfig& config, const Mesh& mesh, int64_t layer) {
  const TensorNames names = NamesOf(config);
  return BuildOne(*MakeCountingSource(config), {config, mesh, names}, layer, 0).bytes;
}

}  // namespace switchyard
