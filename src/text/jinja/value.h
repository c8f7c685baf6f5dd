// The values of a template: the subset of Python's that templates can observe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/text.h"

namespace switchyard::jinja {

class Context;
class Value;
struct List;
class Dict;
class Object;
struct Arguments;

// Integers in template arithmetic. Larger integers in requests are BigIntegers.
using Int = __int128;

// An integer of any size, which can be passed, compared and printed. Decimal digits without leading
// zeros, after a minus sign if the integer is negative.
struct BigInteger {
  std::string digits;
};

// The value of a missing name, attribute or parameter. `message` is raised by every use except
// printing.
struct Undefined {
  std::string message;
};

using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using ObjectPtr = std::shared_ptr<Object>;

// Immutable except for namespaces, cyclers and joiners, which are Objects. Cheap to copy. Confined
// to the thread of one rendering, except for literals of the syntax tree, which threads share
// read-only.
class Value {
 public:
  Value() : data_(None{}) {}
  static Value MakeUndefined(std::string message) {
    return Value(std::make_shared<const Undefined>(Undefined{std::move(message)}));
  }
  static Value Bool(bool value) { return Value(Data(value)); }
  static Value Integer(Int value) { return Value(Data(value)); }
  // `digits` has an optional minus sign and digits. The value is an Int if the number fits.
  static Value IntegerFromDigits(std::string_view digits);
  static Value Float(double value) { return Value(Data(value)); }
  explicit Value(TextPtr text) : data_(std::move(text)) {}
  explicit Value(ListPtr list) : data_(std::move(list)) {}
  explicit Value(DictPtr dict) : data_(std::move(dict)) {}
  explicit Value(ObjectPtr object) : data_(std::move(object)) {}

  bool IsUndefined() const { return Holds<std::shared_ptr<const Undefined>>(); }
  bool IsNone() const { return Holds<None>(); }
  bool IsBool() const { return Holds<bool>(); }
  bool IsInteger() const { return Holds<Int>(); }  // false for bools and BigIntegers
  bool IsBigInteger() const { return Holds<std::shared_ptr<const BigInteger>>(); }
  bool IsFloat() const { return Holds<double>(); }
  bool IsString() const { return Holds<TextPtr>(); }
  bool IsList() const { return Holds<ListPtr>(); }  // true for any List::Kind
  bool IsDict() const { return Holds<DictPtr>(); }
  bool IsObject() const { return Holds<ObjectPtr>(); }
  // True for the numbers that arithmetic accepts: all except BigIntegers.
  bool IsNumber() const { return IsBool() || IsInteger() || IsFloat(); }

  const Undefined& undefined() const { return *std::get<std::shared_ptr<const Undefined>>(data_); }
  bool boolean() const { return std::get<bool>(data_); }
  double floating() const { return std::get<double>(data_); }
  const std::string& big_integer() const {
    return std::get<std::shared_ptr<const BigInteger>>(data_)->digits;
  }
  const Text& text() const { return *std::get<TextPtr>(data_); }
  const List& list() const { return *list_ptr(); }
  const ListPtr& list_ptr() const { return std::get<ListPtr>(data_); }
  const Dict& dict() const { return *std::get<DictPtr>(data_); }
  const ObjectPtr& object() const { return std::get<ObjectPtr>(data_); }

  // The value of a bool or an integer.
  Int integer() const { return IsBool() ? Int{boolean()} : std::get<Int>(data_); }
  // The value of any number.
  double AsDouble() const { return IsFloat() ? floating() : static_cast<double>(integer()); }

 private:
  struct None {};
  using Data = std::variant<None, std::shared_ptr<const Undefined>, bool, Int, double, TextPtr,
                            ListPtr, DictPtr, ObjectPtr, std::shared_ptr<const BigInteger>>;

  explicit Value(Data data) : data_(std::move(data)) {}
  explicit Value(std::shared_ptr<const Undefined> undefined) : data_(std::move(undefined)) {}

  template <typename T>
  bool Holds() const {
    return std::holds_alternative<T>(data_);
  }

  Data data_;
};

// All sequences that are iterated by position. Generators and views are evaluated at creation. They
// keep their kind because in Python they have no length and no subscripts, and print differently.
struct List {
  enum class Kind { kList, kTuple, kGenerator, kView, kRange };

  std::vector<Value> items;
  Kind kind = Kind::kList;
  // kGenerator and kRange: the printed text. kView: the type name, such as dict_items. kTuple: see
  // kGroupLabel.
  std::string label;
  int depth = 1;  // 1 + the depth of the deepest item; Context::MakeList limits it

  bool IsSequence() const { return kind != Kind::kGenerator && kind != Kind::kView; }
};

// The label of tuples that the groupby filter returns. Their two items are also the attributes
// `grouper` and `list`.
inline constexpr std::string_view kGroupLabel = "group";

// Ordered by insertion. Lookups are linear: the dicts of templates are small, and those of requests
// are rarely searched.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }

  // The value of `key`; null if the dict has no such key.
  const Value* Find(Context& context, const Value& key) const;
  const Value* Find(std::string_view key) const;

  // Inserts the key or replaces its value; raises for keys that Python cannot hash.
  void Set(Context& context, Value key, Value value);
  // Precondition: the key is new.
  void Append(Value key, Value value);

 private:
  std::vector<Entry> entries_;
  int depth_ = 1;
};

// Values with identity, state or behaviour: namespaces, macros, loops, functions, bound methods.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;

  virtual std::string TypeName() const = 0;  // Python's type(x).__name__
  virtual std::string Repr() const = 0;

  // The attribute `name`; nullopt if the object has no such attribute.
  virtual std::optional<Value> GetAttribute(Context& context, std::string_view name);

  virtual bool IsCallable() const { return false; }
  virtual Value Call(Context& context, const Arguments& arguments);

  // Returns 1 + the depth of the contents, or 0 for objects whose contents the Context releases.
  virtual int depth() const { return 0; }

  // Drops references to other values, because they may form cycles.
  virtual void Release() {}
};

// Nesting depth of lists, dicts and objects inside `value`; 0 for scalars.
int Depth(const Value& value);

// Raises Python's error for lists and dicts, including those inside a tuple.
void RequireHashable(Context& context, const Value& value);

std::string TypeName(const Value& value);

// "dict object": the name of an object's type in Jinja's messages about missing attributes.
std::string ObjectTypeName(const Value& value);

// Python's bool(value).
bool Truth(const Value& value);

}  // namespace switchyard::jinja
