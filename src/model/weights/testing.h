// For tests: writes small checkpoints.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/temporary_directory.h"
#include "core/tensor.h"
#include "model/weights/safetensors.h"
#include "quant/weight_view.h"

namespace switchyard::testing {

using TempDir = TemporaryDirectory;

inline std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void WriteBytes(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}
inline std::string WithLength(const std::string& header) {
  std::string out(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  return out + header;
}

struct RawTensor {
  std::string dtype;  // as spelled in safetensors
  std::vector<int64_t> shape;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor>;

inline RawTensor FloatTensor(std::vector<int64_t> shape, const std::vector<float>& values) {
  return {"F32", std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
}

inline void WriteSafetensors(const std::filesystem::path& path, const RawTensors& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, t] : tensors) {
    header[name] = {{"dtype", t.dtype},
                    {"shape", t.shape},
                    {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  WriteBytes(path, WithLength(text) + data);
}

inline RawTensors ReadSafetensors(const std::filesystem::path& dir) {
  const Checkpoint checkpoint(dir);
  RawTensors out;
  for (const auto& [name, t] : checkpoint.tensors()) {
    const char* names[] = {"F32", "BF16", "F16", "F8_E4M3", "F8_E5M2", "I64",
                           "I32", "I16",  "I8",  "U8",      "BOOL"};
    out[name] = {names[static_cast<int>(t.dtype)], t.shape,
                 std::string(reinterpret_cast<const char*>(t.data), t.num_bytes)};
  }
  return out;
}

// Float32 tensors with normally distributed values.
class RandomTensors {
 public:
  explicit RandomTensors(uint32_t seed) : random_(seed) {}

  void Add(const std::string& name, std::vector<int64_t> shape, float mean, double deviation) {
    std::normal_distribution<float> normal(mean, static_cast<float>(deviation));
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    tensors[name] = FloatTensor(std::move(shape), values);
  }
  void Matrix(const std::string& name, int64_t n, int64_t k) {
    Add(name + ".weight", {n, k}, 0, 1 / std::sqrt(static_cast<double>(k)));
  }
  void Norm(const std::string& name, int64_t n) { Add(name + ".weight", {n}, 1, 0.2); }

  RawTensors tensors;

 private:
  std::mt19937 random_;
};

// Copies a fixture's config, which the caller may then modify.
inline void CopyConfig(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::copy_file(from / "config.json", to / "config.json");
}

inline std::vector<float> Dequantize(const WeightView& w) {
  std::vector<float> out(static_cast<size_t>(w.n * w.k));
  for (int64_t i = 0; i < w.n; ++i) DequantizeRow(w, i, 0, w.k, out.data() + i * w.k);
  return out;
}

}  // namespace switchyard::testing
