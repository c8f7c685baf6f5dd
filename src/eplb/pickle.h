// The part of Python's pickle that describes saved tensors: plain values, and calls that are only
// recorded (https://docs.python.org/3/library/pickletools.html).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace switchyard {

// A pickle's values, which refer to one another by index: no ownership, and no recursion on deeply
// nested input. A value type.
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
    int64_t number = 0;  // of kBool and kInt
    std::string text;    // of kText and kGlobal
    std::vector<uint32_t> items;
    std::vector<std::pair<uint32_t, uint32_t>> entries;  // of kDict: key, value
  };

  // Error kInvalid starts with `where`: truncated input, an unknown operation, or one that needs
  // what is not there.
  Pickle(const std::string& bytes, const std::string& where);

  const Value& root() const { return values_[root_]; }
  const Value& at(uint32_t index) const { return values_[index]; }

 private:
  friend class Unpickler;
  std::vector<Value> values_;
  uint32_t root_ = 0;
};

}  // namespace switchyard
