#include "text/jinja/context.h"

#include <algorithm>
#include <ctime>

namespace switchyard::jinja {
namespace {

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Memory of values that are created without a context. If several containers share such a value, it
// counts once per container.
size_t UncountedBytes(const Value& value) {
  constexpr size_t kObject = 96;
  if (value.IsUndefined()) return kObject + value.undefined().message.capacity();
  if (value.IsBigInteger()) return kObject + value.big_integer().capacity();
  return 0;
}

}  // namespace

Bound::Bound(std::string_view callee, const Arguments& arguments,
             std::initializer_list<std::string_view> parameters, size_t required)
    : callee_(callee), values_(parameters.size(), nullptr) {
  if (arguments.positional.size() > parameters.size()) {
    Fail("{}() takes at most {} arguments ({} given)", callee, parameters.size(),
         arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto* found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      Fail("{}() got an unexpected keyword argument '{}'", callee, name);
    }
    const Value*& slot = values_[static_cast<size_t>(found - parameters.begin())];
    if (slot) Fail("{}() got multiple values for argument '{}'", callee, name);
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i]) Fail("{}() missing required argument '{}'", callee, parameters.begin()[i]);
  }
}

Int Bound::IntegerOr(size_t index, Int otherwise) const {
  const Value* value = values_[index];
  if (!value) return otherwise;
  if (!value->IsInteger() && !value->IsBool()) {
    Fail("'{}' object cannot be interpreted as an integer", TypeName(*value));
  }
  return value->integer();
}

bool Bound::TruthOr(size_t index, bool otherwise) const {
  return values_[index] ? Truth(*values_[index]) : otherwise;
}

Text Bound::TextOr(size_t index, std::string_view otherwise) const {
  const Value* value = values_[index];
  if (!value) return Text(std::string(otherwise), true);
  if (!value->IsString()) {
    Fail("{}() argument {} must be str, not {}", callee_, index + 1, TypeName(*value));
  }
  return value->text();
}

Context::Context(const RenderOptions& options)
    : options_(options),
      steps_left_(options.max_steps),
      started_(options.cpu_clock ? options.cpu_clock() : ThreadSeconds()) {}

Context::~Context() {
  for (const ObjectPtr& object : kept_) object->Release();
}

void Context::Step(size_t count) {
  if (count > static_cast<size_t>(steps_left_)) {
    Fail("rendering the template takes more than {} steps", options_.max_steps);
  }
  steps_left_ -= static_cast<int64_t>(count);
  Work(count);
}

void Context::Work(size_t amount) {
  constexpr size_t kWorkPerRead = 4096;  // steps; they take less than 1 ms
  work_ += amount;
  if (work_ < kWorkPerRead) return;
  work_ = 0;
  CheckTime();
}

// Needed in addition to the limit of steps, because the time per step varies.
void Context::CheckTime() {
  const double now = options_.cpu_clock ? options_.cpu_clock() : ThreadSeconds();
  if (now - started_ > options_.max_cpu_seconds) {
    Fail("the template takes more than {:g} s of CPU time", options_.max_cpu_seconds);
  }
}

void Context::CheckMemory(size_t bytes) {
  const size_t used = held_ + temporary_;
  if (used > options_.max_bytes || bytes > options_.max_bytes - used) {
    Fail("the template uses more than {} bytes", options_.max_bytes);
  }
  Work(bytes / 256);
}

void Context::Allocate(size_t bytes) {
  CheckMemory(bytes);
  temporary_ += bytes;
}

void Context::Hold(size_t bytes) {
  CheckMemory(bytes);
  held_ += bytes;
}

Value Context::Make(Text text) {
  Scan(text.size());
  const size_t extra = text.HeapBytes();
  return Value(TextPtr(New<Text>(extra, std::move(text))));
}

Value Context::MakeList(std::vector<Value> items, List::Kind kind, std::string label) {
  Step(items.size());
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, 1 + Depth(item));
  if (depth > kMaxNesting) Fail("lists nest deeper than {}", kMaxNesting);
  size_t extra = items.capacity() * sizeof(Value) + label.size();
  for (const Value& item : items) extra += UncountedBytes(item);
  return Value(ListPtr(New<List>(extra, List{std::move(items), kind, std::move(label), depth})));
}

Value Context::MakeDict(Dict dict) {
  Step(dict.size());
  if (dict.depth() > kMaxNesting) Fail("dicts nest deeper than {}", kMaxNesting);
  size_t extra = dict.entries().capacity() * sizeof(Dict::Entry);
  for (const auto& [key, value] : dict.entries()) extra += UncountedBytes(value);
  return Value(DictPtr(New<Dict>(extra, std::move(dict))));
}

void Context::Keep(ObjectPtr object) {
  Hold(256);
  kept_.push_back(std::move(object));
}

std::time_t Context::Now() const { return options_.now ? *options_.now : std::time(nullptr); }

}  // namespace switchyard::jinja
