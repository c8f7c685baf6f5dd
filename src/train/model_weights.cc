// Initializes a model's parameters from a checkpoint or at random.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/hash.h"
#include "model/weights/source.h"
#include "train/model.h"

namespace switchyard::train {
namespace {

// The i-th number of a stream of numbers that are uniform in (0, 1).
double Uniform(uint64_t stream, uint64_t i) {
  return (static_cast<double>(SplitMix64(stream ^ SplitMix64(i)) >> 11) + 0.5) * 0x1p-53;
}

// The i-th number of a stream of normal numbers (Box-Muller).
double Normal(uint64_t stream, uint64_t i) {
  return std::sqrt(-2.0 * std::log(Uniform(stream, 2 * i))) *
         std::cos(2.0 * std::numbers::pi * Uniform(stream, 2 * i + 1));
}

// As PEFT does by default: A is uniform within ±1 / √inputs (Kaiming with a = √5), and B is zero.
// So the adapter's output is zero at first.
template <typename T>
void InitialiseAdapter(uint64_t stream, Parameter<T>* p) {
  std::ranges::fill(p->value, T{0});
  if (p->name.ends_with(".lora_B.weight")) return;
  const double bound = 1.0 / std::sqrt(static_cast<double>(p->whole_shape()[1]));
  for (size_t i = 0; i < p->value.size(); ++i) {
    const auto place =
        static_cast<uint64_t>(p->slice.IndexInWhole(p->shape, static_cast<int64_t>(i)));
    p->value[i] = static_cast<T>(bound * (2.0 * Uniform(stream, place) - 1.0));
  }
}

bool IsSelectionBias(std::string_view name) { return name.ends_with("e_score_correction_bias"); }

}  // namespace

template <typename T>
void Model<T>::Initialise(uint64_t seed, double deviation) {
  for (Parameter<T>& p : set_.all()) {
    const uint64_t stream = SplitMix64(seed ^ HashOf(p.name));
    const bool matrix = p.shape.size() > 1;
    if (IsAdapter(p.name)) {
      InitialiseAdapter(stream, &p);
      continue;
    }
    if (!matrix) {
      std::ranges::fill(p.value, IsSelectionBias(p.name) ? T{0} : T{1});
      continue;
    }
    pool_.RunRanges(std::ssize(p.value), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto place = static_cast<uint64_t>(p.slice.IndexInWhole(p.shape, i));
        p.value[static_cast<size_t>(i)] = static_cast<T>(deviation * Normal(stream, place));
      }
    });
  }
}

template <typename T>
void Model<T>::Load(const std::filesystem::path& dir) {
  constexpr std::string_view kKeys = "its sizes";
  const Checkpoint checkpoint(dir);
  const std::unique_ptr<WeightSource> source =
      MakeCheckpointSource(checkpoint, config_, {.threads = pool_.num_threads()});
  std::vector<Parameter<T>*> stored;
  for (Parameter<T>& p : set_.all()) {
    const auto lacks = [&](const std::string& prefix) {
      return p.name.starts_with(prefix) && !source->Has(prefix + "eh_proj.weight");
    };
    if (IsAdapter(p.name)) continue;
    if (!options_.mtp_only || std::ranges::none_of(mtp_prefixes_, lacks)) stored.push_back(&p);
  }
  std::vector<WeightView> matrices;
  std::vector<std::vector<float>> vectors;
  for (const Parameter<T>* parameter : stored) {
    const Parameter<T>& p = *parameter;
    matrices.emplace_back();
    vectors.emplace_back();
    const int64_t n = p.whole_shape()[0];
    if (p.shape.size() == 1) {  // vectors are never partitioned
      vectors.back().resize(n);
      source->Vector({.name = p.name, .n = n, .range = {0, n}, .norm = true, .keys = kKeys},
                     vectors.back());
    } else {
      const int64_t k = p.whole_shape()[1];
      const int64_t row = p.slice.dimension == 0 ? p.slice.begin : 0, column = p.slice.begin - row;
      matrices.back() = source->Matrix({.name = p.name,
                                        .n = n,
                                        .k = k,
                                        .rows = {row, row + p.shape[0]},
                                        .cols = {column, column + p.shape[1]},
                                        .keys = kKeys});
    }
  }
  source->Finish({});
  std::vector<float> row;
  for (size_t i = 0; i < stored.size(); ++i) {
    Parameter<T>& p = *stored[i];
    if (p.shape.size() == 1) {
      std::copy(vectors[i].begin(), vectors[i].end(), p.value.begin());
    } else {
      row.resize(p.shape[1]);
      for (int64_t r = 0; r < p.shape[0]; ++r) {
        DequantizeRow(matrices[i], r, 0, p.shape[1], row.data());
        std::copy(row.begin(), row.end(), p.value.begin() + r * p.shape[1]);
      }
    }
  }
}

template void Model<float>::Initialise(uint64_t, double);
template void Model<double>::Initialise(uint64_t, double);
template void Model<float>::Load(const std::filesystem::path&);
template void Model<double>::Load(const std::filesystem::path&);

}  // namespace switchyard::train
