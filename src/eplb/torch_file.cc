#include "eplb/torch_file.h"

#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace switchyard {

// The stack machine that executes a pickle. The stack holds indices of values. A mark is a
// remembered stack height.
class Unpickler {
 public:
  Unpickler(const std::string& bytes, const std::string& where, Pickle* out)
      : bytes_(bytes), where_(where), out_(*out) {}

  void Run() {
    while (Step(static_cast<unsigned char>(Take(1)[0]))) {
    }
    out_.root_ = Pop();
  }

 private:
  using Kind = Pickle::Kind;
  using Value = Pickle::Value;

  // Executes one operation; returns false at the end.
  bool Step(unsigned char op) {
    if (op == '.') return false;
    if (Structure(op) || Scalar(op) || Text(op) || Memo(op)) return true;
    throw Invalid("{}: the pickle has the unsupported operation 0x{:02x}", where_, op);
  }

  bool Structure(unsigned char op) {
    switch (op) {
      case 0x80:  // PROTO
        Take(1);
        return true;
      case 0x95:  // FRAME
        Take(8);
        return true;
      case '(':  // MARK
        marks_.push_back(stack_.size());
        return true;
      case '}':  // EMPTY_DICT
        Push({.kind = Kind::kDict});
        return true;
      case ']':  // EMPTY_LIST
      case ')':  // EMPTY_TUPLE
        Push({.kind = Kind::kList});
        return true;
      case 't':  // TUPLE
        Push({.kind = Kind::kList, .items = PopToMark()});
        return true;
      case 0x85:  // TUPLE1 to TUPLE3
      case 0x86:
      case 0x87:
        Push({.kind = Kind::kList, .items = PopMany(op - 0x84)});
        return true;
      case 'a':  // APPEND
        Append(PopMany(1));
        return true;
      case 'e':  // APPENDS
        Append(PopToMark());
        return true;
      case 's':  // SETITEM
        SetItems(PopMany(2));
        return true;
      case 'u':  // SETITEMS
        SetItems(PopToMark());
        return true;
      case 'R': {  // REDUCE
        const std::vector<uint32_t> call = PopMany(2);
        // OrderedDict() without arguments.
        const bool dictionary = out_.at(call[0]).text == "collections OrderedDict";
        Push(dictionary ? Value{.kind = Kind::kDict} : Value{.kind = Kind::kCall, .items = call});
        return true;
      }
      case 'Q':  // BINPERSID
        Push({.kind = Kind::kStorage, .items = PopMany(1)});
        return true;
      case 'b':  // BUILD: attributes, unused by tensors
        Pop();
        return true;
      default:
        return false;
    }
  }

  bool Scalar(unsigned char op) {
    switch (op) {
      case 'N':
        Push({});
        return true;
      case 0x88:
      case 0x89:
        Push({.kind = Kind::kBool, .number = op == 0x88});
        return true;
      case 'K':  // BININT1
        Push({.kind = Kind::kInt, .number = Unsigned(1)});
        return true;
      case 'M':  // BININT2
        Push({.kind = Kind::kInt, .number = Unsigned(2)});
        return true;
      case 'J':  // BININT
        Push({.kind = Kind::kInt, .number = static_cast<int32_t>(Unsigned(4))});
        return true;
      case 0x8a:  // LONG1
        Push({.kind = Kind::kInt, .number = Long()});
        return true;
      case 'G':  // BINFLOAT
        Take(8);
        Push({.kind = Kind::kFloat});
        return true;
      default:
        return false;
    }
  }

  bool Text(unsigned char op) {
    switch (op) {
      case 'X':  // BINUNICODE
      case 'T':  // BINSTRING
        Push({.kind = Kind::kText, .text = std::string(Take(Unsigned(4)))});
        return true;
      case 0x8c:  // SHORT_BINUNICODE
      case 'U':   // SHORT_BINSTRING
        Push({.kind = Kind::kText, .text = std::string(Take(Unsigned(1)))});
        return true;
      case 'c': {  // GLOBAL
        const std::string module(Line());
        Push({.kind = Kind::kGlobal, .text = module + " " + std::string(Line())});
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        constexpr size_t kMaxNameLength = 1000;
        const std::vector<uint32_t> words = PopMany(2);
        for (const uint32_t word : words)
          if (out_.at(word).kind != Kind::kText || out_.at(word).text.size() > kMaxNameLength)
            Damaged();
        Push(
            {.kind = Kind::kGlobal, .text = out_.at(words[0]).text + " " + out_.at(words[1]).text});
        return true;
      }
      default:
        return false;
    }
  }

  bool Memo(unsigned char op) {
    switch (op) {
      case 'q':  // BINPUT
        memo_[Unsigned(1)] = Top();
        return true;
      case 'r':  // LONG_BINPUT
        memo_[Unsigned(4)] = Top();
        return true;
      case 0x94:  // MEMOIZE
        memo_[static_cast<int64_t>(memo_.size())] = Top();
        return true;
      case 'h':  // BINGET
        Recall(Unsigned(1));
        return true;
      case 'j':  // LONG_BINGET
        Recall(Unsigned(4));
        return true;
      default:
        return false;
    }
  }

  [[noreturn]] void Damaged() const { throw Invalid("{}: the pickle is damaged", where_); }

  std::string_view Take(size_t count) {
    if (count > bytes_.size() - at_) Damaged();
    at_ += count;
    return std::string_view(bytes_).substr(at_ - count, count);
  }
  std::string_view Line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string::npos) Damaged();
    const std::string_view line = Take(end - at_);
    Take(1);
    return line;
  }
  int64_t Unsigned(size_t size) {
    uint32_t value = 0;
    std::memcpy(&value, Take(size).data(), size);
    return value;
  }
  int64_t Long() {
    const std::string_view digits = Take(Unsigned(1));
    if (digits.size() > sizeof(int64_t)) Damaged();
    const bool negative = !digits.empty() && static_cast<signed char>(digits.back()) < 0;
    int64_t value = negative ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    return value;
  }

  void Push(Value value) {
    out_.values_.push_back(std::move(value));
    stack_.push_back(static_cast<uint32_t>(out_.values_.size() - 1));
  }
  void Recall(int64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) Damaged();
    stack_.push_back(found->second);
  }
  // Stack height at the last mark, 0 without a mark. It is the index of the first operand of an
  // operation that consumes the values since the mark.
  size_t Bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  uint32_t Top() const {
    if (stack_.size() <= Bottom()) Damaged();
    return stack_.back();
  }
  uint32_t Pop() {
    const uint32_t top = Top();
    stack_.pop_back();
    return top;
  }
  std::vector<uint32_t> PopMany(size_t count) {
    if (stack_.size() - Bottom() < count) Damaged();
    std::vector<uint32_t> items(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return items;
  }
  std::vector<uint32_t> PopToMark() {
    if (marks_.empty()) Damaged();
    std::vector<uint32_t> items = PopMany(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }
  void Append(const std::vector<uint32_t>& items) {
    Value& list = out_.values_[Top()];
    if (list.kind != Kind::kList) Damaged();
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  void SetItems(const std::vector<uint32_t>& items) {
    Value& dictionary = out_.values_[Top()];
    if (dictionary.kind != Kind::kDict || items.size() % 2 != 0) Damaged();
    for (size_t i = 0; i < items.size(); i += 2)
      dictionary.entries.emplace_back(items[i], items[i + 1]);
  }

  const std::string& bytes_;
  const std::string& where_;
  Pickle& out_;
  size_t at_ = 0;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::map<int64_t, uint32_t> memo_;
};

Pickle::Pickle(const std::string& bytes, const std::string& where) {
  Unpickler(bytes, where, this).Run();
}

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
