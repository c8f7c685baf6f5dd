// Budgets of one rendering, creation of values, and errors.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/template.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// An error while rendering; Template::Render adds name and line and throws TemplateError.
struct Raise {
  std::string message;
};

template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Raise{fmt::format(format, std::forward<Args>(args)...)};
}

// Evaluated arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Maps the arguments of a built-in callable to its parameters; raises for unknown, duplicate and
// missing ones.
class Bound {
 public:
  Bound(std::string_view callee, const Arguments& arguments,
        std::initializer_list<std::string_view> parameters, size_t required = 0);

  // Null if parameter `index` was not given.
  const Value* operator[](size_t index) const { return values_[index]; }

  Int IntegerOr(size_t index, Int otherwise) const;  // raises if the argument is not an integer
  bool TruthOr(size_t index, bool otherwise) const;
  Text TextOr(size_t index, std::string_view otherwise) const;  // raises if not a string

 private:
  std::string callee_;
  std::vector<const Value*> values_;
};

// Counts the resources of a rendering and raises when a budget is exceeded. One per rendering, used
// by its thread only.
class Context {
 public:
  explicit Context(const RenderOptions& options);
  ~Context();  // releases all kept objects, which breaks cycles through namespaces and macros
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Call before visiting `count` elements.
  void Step(size_t count = 1);
  // Call before reading `bytes` bytes.
  void Scan(size_t bytes) { Step(1 + bytes / 64); }
  // Call before allocating `bytes` bytes for an intermediate result. The bytes count until the
  // innermost Temporaries object is destroyed.
  void Allocate(size_t bytes);

  // Count the memory of a value or a scope. Call Hold before its creation and Drop at its
  // destruction.
  void Hold(size_t bytes);
  void Drop(size_t bytes) { held_ -= bytes; }

  // Lives during the evaluation of an expression. Its destructor subtracts the bytes of Allocate.
  // The result of the expression is counted by Hold.
  class Temporaries {
   public:
    explicit Temporaries(Context& context) : context_(context), before_(context.temporary_) {}
    ~Temporaries() { context_.temporary_ = before_; }
    Temporaries(const Temporaries&) = delete;
    Temporaries& operator=(const Temporaries&) = delete;

   private:
    Context& context_;
    const size_t before_;
  };

  // Creates a T. Its size and `extra` bytes count until its destruction. The context must outlive
  // the T.
  template <typename T, typename... Args>
  std::shared_ptr<T> New(size_t extra, Args&&... args) {
    const size_t bytes = sizeof(Counted<T>) + kControlBlock + extra;
    Hold(bytes);
    try {
      return std::make_shared<Counted<T>>(*this, bytes, std::forward<Args>(args)...);
    } catch (...) {
      Drop(bytes);
      throw;
    }
  }

  Value Make(Text text);
  Value Make(std::string bytes, bool trusted) { return Make(Text(std::move(bytes), trusted)); }
  Value MakeList(std::vector<Value> items, List::Kind kind = List::Kind::kList,
                 std::string label = {});
  Value MakeDict(Dict dict);

  // Holds `object` until the rendering ends, and then calls its Release().
  void Keep(ObjectPtr object);

  size_t max_output() const { return options_.max_output; }
  std::time_t Now() const;

 private:
  static constexpr size_t kControlBlock = 32;  // bytes of a shared_ptr and of the allocator

  // Calls Context::Drop for the counted bytes when it is destroyed.
  struct Held {
    Context& context;
    const size_t bytes;
    ~Held() { context.Drop(bytes); }
  };

  // T needs no virtual destructor: std::make_shared stores a deleter of this type.
  template <typename T>
  struct Counted final : T {
    template <typename... Args>
    Counted(Context& context, size_t bytes, Args&&... args)
        : T(std::forward<Args>(args)...), held{context, bytes} {}

    Held held;
  };

  void CheckMemory(size_t bytes);
  void Work(size_t amount);
  void CheckTime();

  const RenderOptions options_;
  int64_t steps_left_;
  size_t held_ = 0, temporary_ = 0;  // bytes
  size_t work_ = 0;                  // steps since the last read of the clock
  double started_;                   // CPU time in seconds
  std::vector<ObjectPtr> kept_;      // last: the destructors of its objects call Drop
};

// Limits the C++ recursion of evaluation, because macros and recursive loops of a template
// determine its depth.
class DepthGuard {
 public:
  explicit DepthGuard(int& depth) : depth_(depth) {
    if (++depth_ > kMaxDepth) {
      --depth_;
      Fail("maximum recursion depth exceeded");
    }
  }
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  static constexpr int kMaxDepth = 1000;

  int& depth_;
};

// Maximum nesting of lists and dicts, in templates and in requests; recursion below it cannot
// overflow the stack.
constexpr int kMaxNesting = 200;

}  // namespace switchyard::jinja
