#include "core/safetensors_writer.h"

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/regular_file.h"

namespace switchyard {
namespace {

// Name of a dtype in the safetensors format.
const char* FormatName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E5M2:
      return "F8_E5M2";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI16:
      return "I16";
    case DType::kI8:
      return "I8";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  return "";
}

size_t BytesOf(DType dtype, const std::vector<int64_t>& shape) {
  return static_cast<size_t>(
             std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())) *
         SizeOf(dtype);
}

}  // namespace

std::string SafetensorsHead(const TensorEntries& tensors,
                            const std::map<std::string, std::string>& metadata) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, entry] : tensors) {
    json[name] = {{"dtype", FormatName(entry.dtype)},
                  {"shape", entry.shape},
                  {"data_offsets", {entry.begin, entry.end}}};
  }
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::string header = json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // aligns the tensor data to 8 bytes
  const uint64_t length = header.size();
  std::string head(sizeof length, '\0');
  std::memcpy(head.data(), &length, sizeof length);  // little endian, like the host
  return head + header;
}

void SafetensorsWriter::Copy(const std::string& name, DType dtype, std::vector<int64_t> shape,
                             const void* data, size_t size) {
  CHECK_EQ(BytesOf(dtype, shape), size);
  entries_.push_back(
      {.name = name,
       .dtype = dtype,
       .shape = std::move(shape),
       .bytes = size == 0 ? std::string() : std::string(static_cast<const char*>(data), size),
       .size = size});
}

void SafetensorsWriter::Add(const std::string& name, std::vector<int64_t> shape,
                            const std::vector<int32_t>& data) {
  Copy(name, DType::kI32, std::move(shape), data.data(), data.size() * sizeof data[0]);
}

void SafetensorsWriter::Add(const std::string& name, std::vector<int64_t> shape,
                            const std::vector<int64_t>& data) {
  Copy(name, DType::kI64, std::move(shape), data.data(), data.size() * sizeof data[0]);
}

void SafetensorsWriter::AddView(const std::string& name, DType dtype, std::vector<int64_t> shape,
                                const void* data) {
  const size_t size = BytesOf(dtype, shape);
  entries_.push_back(
      {.name = name, .dtype = dtype, .shape = std::move(shape), .view = data, .size = size});
}

uint64_t SafetensorsWriter::data_bytes() const {
  uint64_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.size;
  return bytes;
}

void SafetensorsWriter::Write(const std::filesystem::path& path) const {
  TensorEntries tensors;
  uint64_t offset = 0;
  for (const Entry& entry : entries_) {
    tensors[entry.name] = {entry.dtype, entry.shape, offset, offset + entry.size};
    offset += entry.size;
  }
  const std::string head = SafetensorsHead(tensors, metadata_);
  OutputFile out(path);
  out.Write(head.data(), head.size());
  for (const Entry& entry : entries_) {
    out.Write(entry.view != nullptr ? entry.view : entry.bytes.data(), entry.size);
  }
  out.Finish();
}

}  // namespace switchyard
