#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/error.h"
#include "core/range.h"
#include "core/safetensors.h"
#include "core/tensor.h"
#include "train/layers/lora.h"
#include "train/run/checkpoint.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;

// All tensors of a checkpoint's optimizer*.safetensors files.
class OptimizerFiles {
 public:
  explicit OptimizerFiles(const fs::path& dir) : dir_(dir) {
    for (const auto& entry : fs::directory_iterator(dir)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("optimizer") && name.ends_with(".safetensors")) Open(entry.path());
    }
    if (tensors_.empty()) {
      throw NotFound("{}: no optimizer.safetensors; a run cannot resume from it", dir.string());
    }
  }

  struct Place {
    fs::path file;
    TensorEntry entry;
  };
  const std::map<std::string, Place>& tensors() const { return tensors_; }

  static std::vector<float> ReadWhole(const std::string& name, const Place& place) {
    std::vector<float> whole((place.entry.end - place.entry.begin) / sizeof(float));
    std::ifstream in(place.file, std::ios::binary);
    in.seekg(static_cast<std::streamoff>(place.entry.begin));
    in.read(reinterpret_cast<char*>(whole.data()),
            static_cast<std::streamsize>(whole.size() * sizeof(float)));
    if (!in) throw Invalid("{}: tensor {} cannot be read", place.file.string(), name);
    return whole;
  }

  // Reads the elements `range` of p's part of a tensor; out has their number.
  void Read(const std::string& name, const Parameter<float>& p, const Range& range,
            std::vector<float>* out) const {
    const std::vector<int64_t>& shape = p.whole_shape();
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) {
      throw Invalid("{}: no tensor {}; it was written for another config", dir_.string(), name);
    }
    const auto& [file, entry] = it->second;
    if (entry.dtype != DType::kF32 || entry.shape != shape) {
      throw Invalid("{}: tensor {} is {} {}, want float32 {}; it was written for another config",
                    file.string(), name, Name(entry.dtype), ShapeString(entry.shape),
                    ShapeString(shape));
    }
    std::vector<float> whole = ReadWhole(name, it->second);
    CHECK_EQ(std::ssize(*out), range.size());
    if (out->size() == whole.size()) {
      out->swap(whole);
      return;
    }
    for (int64_t i = range.begin; i < range.end; ++i)
      (*out)[static_cast<size_t>(i - range.begin)] = whole[p.slice.IndexInWhole(p.shape, i)];
  }

 private:
  void Open(const fs::path& file) {
    const uint64_t size = fs::file_size(file);
    std::ifstream in(file, std::ios::binary);
    uint64_t length = 0;
    in.read(reinterpret_cast<char*>(&length), sizeof length);
    std::vector<uint8_t> head(size < sizeof length ? size
                                                   : sizeof length + std::min(length, size - 8));
    in.clear();
    in.seekg(0);
    in.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(head.size()));
    for (auto& [name, entry] : ParseSafetensorsHeader(head, size, file.string())) {
      if (!tensors_.emplace(name, Place{file, entry}).second) {
        throw Invalid("{}: tensor {} occurs in two files", file.string(), name);
      }
    }
  }

  fs::path dir_;
  std::map<std::string, Place> tensors_;
};

// Throws if the checkpoint has tensors that no rank of the model has.
void CheckNoUnknownTensors(const OptimizerFiles& files, const Catalog& catalog,
                           const fs::path& dir) {
  size_t others = 0;
  std::string some;
  for (const auto& [name, place] : files.tensors()) {
    if (!name.starts_with("master.") || catalog.tensors().contains(name.substr(7))) continue;
    if (++others <= 3) some += (others == 1 ? "" : ", ") + name.substr(7);
  }
  if (others > 0) {
    throw Invalid(
        "{}: has {} tensors that the model lacks ({}{}); it was written for another config",
        dir.string(), others, some, others > 3 ? ", …" : "");
  }
}

TrainerState ReadState(const fs::path& path, int64_t* optimizer_steps) {
  std::ifstream in(path);
  if (!in) throw NotFound("{}: cannot be read; a run cannot resume from it", path.string());
  try {
    const auto json = nlohmann::json::parse(in);
    if (json.at("format") != 1) throw Invalid("{}: unsupported format version", path.string());
    *optimizer_steps = json.at("optimizer_steps").get<int64_t>();
    TrainerState state{.step = json.at("step"),
                       .position = {json.at("epoch").get<int64_t>(), json.at("row").get<int64_t>()},
                       .corpus = json.at("corpus"),
                       .tokens = json.at("tokens"),
                       .seconds = json.at("seconds")};
    // Absent in checkpoints of earlier versions.
    state.history.skipped = json.value("skipped_in_a_row", 0);
    state.history.losses = json.value("recent_losses", std::vector<double>{});
    state.history.norms = json.value("recent_gradient_norms", std::vector<double>{});
    if (state.step < 0 || state.position.epoch < 0 || state.position.row < 0) {
      throw Invalid("{}: has a negative step or position", path.string());
    }
    return state;
  } catch (const nlohmann::json::exception& error) {
    throw Invalid("{}: {}", path.string(), error.what());
  }
}

}  // namespace

std::map<std::string, StoredAdapter> ReadAdapters(const fs::path& dir) {
  const OptimizerFiles files(dir);
  std::map<std::string, StoredAdapter> adapters;
  for (const auto& [name, place] : files.tensors()) {
    if (!name.starts_with("master.") || !IsAdapter(name)) continue;
    adapters[name.substr(7)] = {place.entry.shape, OptimizerFiles::ReadWhole(name, place)};
  }
  return adapters;
}

TrainerState LoadCheckpoint(const fs::path& dir, const Catalog& catalog, AdamW* optimizer) {
  int64_t steps = 0;
  TrainerState state = ReadState(dir / "trainer.json", &steps);
  const OptimizerFiles files(dir);
  CheckNoUnknownTensors(files, catalog, dir);
  for (size_t i = 0; i < optimizer->parameters().size(); ++i) {
    Parameter<float>& p = *optimizer->parameters()[i];
    files.Read("master." + p.name, p, {0, std::ssize(p.value)}, &p.value);
    if (!p.trained()) continue;
    AdamW::Moments& moments = optimizer->moments()[i];
    files.Read("first." + p.name, p, p.MyShard(), &moments.first);
    files.Read("second." + p.name, p, p.MyShard(), &moments.second);
  }
  optimizer->set_steps(steps);
  return state;
}

}  // namespace switchyard::train
