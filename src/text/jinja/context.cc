#include "text/jinja/context.h"

#include <algorithm>

namespace switchyard::jinja {

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
    : options_(options), steps_left_(options.max_steps), bytes_left_(options.max_bytes) {}

Context::~Context() {
  for (const ObjectPtr& object : kept_) object->Release();
}

void Context::Step(size_t count) {
  if (count > static_cast<size_t>(steps_left_)) {
    Fail("rendering the template takes more than {} steps", options_.max_steps);
  }
  steps_left_ -= static_cast<int64_t>(count);
}

void Context::Allocate(size_t bytes) {
  if (bytes > bytes_left_)
    Fail("rendering the template allocates more than {} bytes", options_.max_bytes);
  bytes_left_ -= bytes;
}

Value Context::Make(Text text) {
  Scan(text.size());
  Allocate(text.size() + sizeof(Text));
  return Value(std::make_shared<const Text>(std::move(text)));
}

Value Context::MakeList(std::vector<Value> items, List::Kind kind, std::string label) {
  Step(items.size());
  Allocate(items.size() * sizeof(Value) + sizeof(List));
  int depth = 1;
  for (const Value& item : items) depth = std::max(depth, 1 + Depth(item));
  if (depth > kMaxNesting) Fail("lists nest deeper than {}", kMaxNesting);
  return Value(std::make_shared<const List>(List{std::move(items), kind, std::move(label), depth}));
}

Value Context::MakeDict(Dict dict) {
  Step(dict.size());
  Allocate(dict.size() * sizeof(Dict::Entry) + sizeof(Dict));
  if (dict.depth() > kMaxNesting) Fail("dicts nest deeper than {}", kMaxNesting);
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

void Context::Keep(ObjectPtr object) {
  Allocate(256);
  kept_.push_back(std::move(object));
}

std::time_t Context::Now() const { return options_.now ? *options_.now : std::time(nullptr); }

}  // namespace switchyard::jinja
