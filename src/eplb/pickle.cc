#include "eplb/pickle.h"

#include <cstring>
#include <map>
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

}  // namespace switchyard
