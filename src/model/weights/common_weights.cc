#include "model/weights/common_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/format.h"
#include "model/weights/source.h"
#include "model/weights/stored_weights.h"
#include "quant/weight_view.h"

namespace switchyard {
namespace {

// Equal keys: the same numbers of the checkpoint in the same order. The scheme follows from the
// name, and the keys of messages have no effect.
std::string KeyOf(const MatrixRequest& r) {
  return fmt::format("{}|{}x{}|{}-{}|{}-{}|{}+{}|{}/{}|{}|{}{}{}{}", r.name, r.n, r.k, r.rows.begin,
                     r.rows.end, r.cols.begin, r.cols.end, r.row0, r.row_step, r.expert, r.experts,
                     r.total_rows, r.mxfp4_blocks, r.transposed, !r.picked.empty(), r.of_owner);
}

std::string KeyOf(const VectorRequest& r) {
  return fmt::format("{}|{}|{}-{}|{}+{}|{}/{}|{}|{}{}", r.name, r.n, r.range.begin, r.range.end,
                     r.offset, r.step, r.expert, r.experts, r.kernel, r.norm, r.of_owner);
}

using Keys = std::set<std::string>;

// Records the keys of all requests. `inner` reads no data.
class RecordingSource : public WeightSource {
 public:
  RecordingSource(WeightSource& inner, Keys* keys) : inner_(inner), keys_(*keys) {}

  bool Has(const std::string& name) const override { return inner_.Has(name); }
  WeightView Matrix(const MatrixRequest& request) override {
    keys_.insert(KeyOf(request));
    return inner_.Matrix(request);
  }
  void Vector(const VectorRequest& request, std::span<float> out) override {
    keys_.insert(KeyOf(request));
    inner_.Vector(request, out);
  }
  void Finish(const Progress&) override {}

 private:
  WeightSource& inner_;
  Keys& keys_;
};

// The parts that have been read, by key.
struct Store {
  std::map<std::string, WeightView> matrices;
  std::map<std::string, std::vector<float>> vectors;
};

// Reads the parts of `keys` with `inner` and keeps them in `store`. Other requests get views
// without data from `sizes`.
class SelectingSource : public WeightSource {
 public:
  SelectingSource(WeightSource& inner, WeightSource& sizes, const Keys& keys, Store* store)
      : inner_(inner), sizes_(sizes), keys_(keys), store_(*store) {}

  bool Has(const std::string& name) const override { return inner_.Has(name); }
  WeightView Matrix(const MatrixRequest& request) override {
    const std::string key = KeyOf(request);
    if (!keys_.contains(key)) return sizes_.Matrix(request);
    const auto [known, is_new] = store_.matrices.try_emplace(key);
    if (is_new) {
      known->second = inner_.Matrix(request);
      bytes_ += StoredBytes(known->second);
    }
    return known->second;
  }
  void Vector(const VectorRequest& request, std::span<float> out) override {
    const std::string key = KeyOf(request);
    if (!keys_.contains(key)) return;
    const auto [known, is_new] = store_.vectors.try_emplace(key);
    if (is_new) {
      known->second.resize(out.size());
      inner_.Vector(request, known->second);
      bytes_ += static_cast<double>(out.size_bytes());
    }
    std::ranges::copy(known->second, out.begin());
  }
  void Finish(const Progress& progress) override { inner_.Finish(progress); }

  size_t bytes() const { return static_cast<size_t>(std::llround(bytes_)); }

 private:
  WeightSource& inner_;
  WeightSource& sizes_;
  const Keys& keys_;
  Store& store_;
  double bytes_ = 0;
};

// Takes the parts of `store`, and reads all others with `inner`.
class CompletingSource : public WeightSource {
 public:
  CompletingSource(WeightSource& inner, const Store& store) : inner_(inner), store_(store) {}

  bool Has(const std::string& name) const override { return inner_.Has(name); }
  WeightView Matrix(const MatrixRequest& request) override {
    const auto known = store_.matrices.find(KeyOf(request));
    return known != store_.matrices.end() ? known->second : inner_.Matrix(request);
  }
  void Vector(const VectorRequest& request, std::span<float> out) override {
    const auto known = store_.vectors.find(KeyOf(request));
    if (known == store_.vectors.end()) return inner_.Vector(request, out);
    CHECK_EQ(known->second.size(), out.size());
    std::ranges::copy(known->second, out.begin());
  }
  void Finish(const Progress& progress) override { inner_.Finish(progress); }

 private:
  WeightSource& inner_;
  const Store& store_;
};

}  // namespace

struct CommonWeights::Impl {
  Impl(const std::filesystem::path& dir, const ModelConfig& model, const LoadOptions& options)
      : config(model), dummy(options.load_format == "dummy") {
    if (!dummy) stored.emplace(dir);
  }

  std::unique_ptr<WeightSource> Source(const LoadOptions& options) const {
    if (dummy) return MakeDummySource(config, options.dummy_seed, options.threads);
    return stored->MakeSource(
        config, {.check_nan_scales = options.check_nan_scales, .threads = options.threads});
  }
  // A source that reads no data.
  std::unique_ptr<WeightSource> Sizes() const {
    if (dummy) return MakeCountingSource(config);
    return stored->MakeSource(config, {.read_data = false, .log = false});
  }

  Keys KeysOf(const MeshShape& shape, int rank, const LoadOptions& options) const {
    Keys keys;
    const std::unique_ptr<WeightSource> sizes = Sizes();
    RecordingSource source(*sizes, &keys);
    BuildWeights(config, Mesh(shape, rank), options, source);
    return keys;
  }

  const ModelConfig config;
  const bool dummy;
  std::optional<StoredWeights> stored;  // the files stay mapped
  Store store;
  size_t bytes = 0;
};

CommonWeights::CommonWeights(const std::filesystem::path& dir, const ModelConfig& config,
                             const MeshShape& shape, const LoadOptions& options)
    : impl_(std::make_unique<Impl>(dir, config, options)) {
  Keys common = impl_->KeysOf(shape, 0, options);
  for (int rank = 1; rank < Mesh(shape, 0).world(); ++rank) {
    const Keys keys = impl_->KeysOf(shape, rank, options);
    std::erase_if(common, [&](const std::string& key) { return !keys.contains(key); });
  }
  const std::unique_ptr<WeightSource> inner = impl_->Source(options), sizes = impl_->Sizes();
  SelectingSource source(*inner, *sizes, common, &impl_->store);
  BuildWeights(impl_->config, Mesh(shape, 0), options, source);
  source.Finish(options.progress);
  impl_->bytes = source.bytes();
}

CommonWeights::~CommonWeights() = default;

ModelWeights CommonWeights::Load(const Mesh& mesh, const LoadOptions& options) const {
  const std::unique_ptr<WeightSource> inner = impl_->Source(options);
  CompletingSource source(*inner, impl_->store);
  ModelWeights weights = BuildWeights(impl_->config, mesh, options, source);
  source.Finish(options.progress);
  return weights;
}

size_t CommonWeights::bytes() const { return impl_->bytes; }

}  // namespace switchyard
