#include "eplb/torch_file.h"

#include <fstream>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "eplb/pickle.h"
#include "eplb/zip_archive.h"

namespace switchyard {
namespace {

using Kind = Pickle::Kind;

constexpr uint64_t kMaxPickleBytes = 64 << 20;
constexpr size_t kMaxDimensions = 64;  // torch's limit

std::optional<DType> DTypeOfStorage(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kStorages[] = {
      {"FloatStorage", DType::kF32},     {"HalfStorage", DType::kF16},
      {"BFloat16Storage", DType::kBF16}, {"LongStorage", DType::kI64},
      {"IntStorage", DType::kI32},       {"ShortStorage", DType::kI16},
      {"CharStorage", DType::kI8},       {"ByteStorage", DType::kU8},
      {"BoolStorage", DType::kBool}};
  for (const auto& [storage, dtype] : kStorages)
    if (name == storage) return dtype;
  return std::nullopt;
}

class TorchFile {
 public:
  explicit TorchFile(const std::filesystem::path& path)
      : archive_(path),
        pickle_name_(archive_.NameEndingWith("/data.pkl")),
        prefix_(pickle_name_.substr(0, pickle_name_.rfind('/') + 1)),
        pickle_(ReadPickle(), archive_.name()) {
    const std::string order = archive_.NameEndingWith(prefix_ + "byteorder");
    if (!order.empty() && archive_.Read(order, 16) != "little")
      throw Invalid("{}: big-endian numbers are not supported", archive_.name());
  }

  TensorEntries Tensors(std::set<std::string>* scattered) const {
    if (pickle_.root().kind != Kind::kDict)
      throw Invalid("{}: want a dictionary of tensors, saved by torch.save", archive_.name());
    TensorEntries tensors;
    for (const auto& [key, value] : pickle_.root().entries) {
      const Pickle::Value& call = pickle_.at(value);
      if (pickle_.at(key).kind != Kind::kText || !IsTensor(call)) continue;
      const std::string& name = pickle_.at(key).text;
      if (const auto entry = EntryOf(name, pickle_.at(call.items[1]))) {
        tensors[name] = *entry;
      } else {
        scattered->insert(name);
      }
    }
    return tensors;
  }

 private:
  std::string ReadPickle() const {
    if (pickle_name_.empty())
      throw Invalid("{}: a ZIP archive, but not one of torch.save: no data.pkl", archive_.name());
    return archive_.Read(pickle_name_, kMaxPickleBytes);
  }

  bool IsTensor(const Pickle::Value& value) const {
    if (value.kind != Kind::kCall) return false;
    const std::string& function = pickle_.at(value.items[0]).text;
    return function == "torch._utils _rebuild_tensor_v2";
  }

  [[noreturn]] void Damaged(const std::string& name) const {
    throw Invalid("{}: {}: the description of the tensor is damaged", archive_.name(), name);
  }

  // A list of non-negative integers.
  std::vector<int64_t> Numbers(const std::string& name, const Pickle::Value& list) const {
    std::vector<int64_t> numbers;
    if (list.kind != Kind::kList || list.items.size() > kMaxDimensions) Damaged(name);
    for (const uint32_t item : list.items) {
      if (pickle_.at(item).kind != Kind::kInt || pickle_.at(item).number < 0) Damaged(name);
      numbers.push_back(pickle_.at(item).number);
    }
    return numbers;
  }

  // `arguments`: storage, first element, shape, strides, … Returns nullopt if the tensor is not
  // contiguous.
  std::optional<TensorEntry> EntryOf(const std::string& name,
                                     const Pickle::Value& arguments) const {
    if (arguments.kind != Kind::kList || arguments.items.size() < 4) Damaged(name);
    const auto argument = [&](size_t i) -> const Pickle::Value& {
      return pickle_.at(arguments.items[i]);
    };
    if (argument(0).kind != Kind::kStorage || argument(1).kind != Kind::kInt) Damaged(name);
    TensorEntry entry{.shape = Numbers(name, argument(2))};
    const ZipArchive::Entry storage =
        StorageOf(name, pickle_.at(argument(0).items[0]), &entry.dtype);
    const std::vector<int64_t> strides = Numbers(name, argument(3));
    if (strides.size() != entry.shape.size()) Damaged(name);
    const uint64_t most = storage.size / SizeOf(entry.dtype);
    uint64_t elements = 1;
    for (size_t i = entry.shape.size(); i-- > 0;) {
      if (entry.shape[i] > 1 && static_cast<uint64_t>(strides[i]) != elements) return std::nullopt;
      if (entry.shape[i] > 0 && elements > most / static_cast<uint64_t>(entry.shape[i]))
        throw Invalid("{}: {}: larger than its storage", archive_.name(), name);
      elements *= static_cast<uint64_t>(entry.shape[i]);
    }
    const int64_t first = argument(1).number;
    if (first < 0 || static_cast<uint64_t>(first) > most - elements)
      throw Invalid("{}: {}: larger than its storage", archive_.name(), name);
    entry.begin = storage.begin + first * SizeOf(entry.dtype);
    entry.end = entry.begin + elements * SizeOf(entry.dtype);
    return entry;
  }

  // `id`: "storage", the class of the storage, name of the archive entry, original device, number
  // of elements.
  ZipArchive::Entry StorageOf(const std::string& name, const Pickle::Value& id,
                              DType* dtype) const {
    if (id.kind != Kind::kList || id.items.size() < 3) Damaged(name);
    const std::string& type = pickle_.at(id.items[1]).text;
    const std::optional<DType> known =
        DTypeOfStorage(std::string_view(type).substr(type.rfind(' ') + 1));
    if (!known) throw Invalid("{}: {}: unknown element type {}", archive_.name(), name, type);
    *dtype = *known;
    return archive_.Find(prefix_ + "data/" + pickle_.at(id.items[2]).text);
  }

  const ZipArchive archive_;
  const std::string pickle_name_, prefix_;
  const Pickle pickle_;
};

}  // namespace

bool IsTorchFile(const std::filesystem::path& path) {
  char head[4] = {};
  std::ifstream(path, std::ios::binary).read(head, sizeof head);
  return std::string_view(head, sizeof head) == "PK\3\4";
}

TensorEntries ReadTorchTensors(const std::filesystem::path& path,
                               std::set<std::string>* scattered) {
  return TorchFile(path).Tensors(scattered);
}

}  // namespace switchyard
