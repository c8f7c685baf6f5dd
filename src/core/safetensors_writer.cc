#include "core/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "core/error.h"

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

std::string Header(const std::map<std::string, std::string>& metadata, nlohmann::json tensors) {
  if (!metadata.empty()) tensors["__metadata__"] = metadata;
  std::string header = tensors.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // aligns the tensor data to 8 bytes
  return header;
}

// A temporary file, deleted unless Finish renames it. Errors are std::system_error.
class PartFile {
 public:
  explicit PartFile(std::filesystem::path path) : path_(std::move(path)) {
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file_ < 0) Fail();
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile() {
    if (file_ >= 0) ::close(file_);
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }

  void Write(const void* data, size_t size) {
    const char* next = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(file_, next, std::min(size, size_t{1} << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) Fail();
      next += written;
      size -= static_cast<size_t>(written);
    }
  }

  void Finish(const std::filesystem::path& path) {
    if (::fsync(file_) != 0) Fail();
    if (::close(std::exchange(file_, -1)) != 0) Fail();
    std::filesystem::rename(path_, path);
    path_.clear();
  }

 private:
  [[noreturn]] static void Fail() { throw std::system_error(errno, std::generic_category()); }

  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace

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
  nlohmann::json tensors = nlohmann::json::object();
  uint64_t offset = 0;
  for (const Entry& entry : entries_) {
    tensors[entry.name] = {{"dtype", FormatName(entry.dtype)},
                           {"shape", entry.shape},
                           {"data_offsets", {offset, offset + entry.size}}};
    offset += entry.size;
  }
  const std::string header = Header(metadata_, std::move(tensors));
  const uint64_t length = header.size();

  std::filesystem::path part = path;
  part += ".part";
  try {
    PartFile out(part);
    out.Write(&length, sizeof length);  // little endian, like the host
    out.Write(header.data(), header.size());
    for (const Entry& entry : entries_) {
      out.Write(entry.view != nullptr ? entry.view : entry.bytes.data(), entry.size);
    }
    out.Finish(path);
  } catch (const std::system_error& error) {
    throw Resource("{}: cannot be written: {}", path.string(), error.code().message());
  }
}

}  // namespace switchyard
