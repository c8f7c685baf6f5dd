// Reads the subset of Python's pickle that describes saved tensors: plain values and calls. Calls
// are recorded, not executed (https://docs.python.org/3/library/pickletools.html).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace switchyard {

// The values of a pickle refer to one another by index, so there is no ownership, and no recursion
// on deeply nested input. A value type.
class Pickle {
 public:
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kList,  // or tuple
    kDict,
    kGlobal,   // text: "module name"
    kCall,     // items: function, arguments (a list)
    kStorage,  // items: the persistent id (a list)
  };
  struct Value {
    Kind kind = Kind::kNone;
    int64_t number = 0;  // value of kBool and kInt
    std::string text;    // value of kText and kGlobal
    std::vector<uint32_t> items;
    std::vector<std::pair<uint32_t, uint32_t>> entries;  // for kDict: key, value
  };

  // Error kInvalid for truncated input, an unsupported operation or an operand that does not exist.
  // The message starts with `where`.
  Pickle(const std::string& bytes, const std::string& where);

  const Value& root() const { return values_[root_]; }
  const Value& at(uint32_t index) const { return values_[index]; }

 private:
  friend class Unpickler;
  std::vector<Value> values_;
  uint32_t root_ = 0;
};

}  // namespace switchyard
