// The global functions of a template: range, namespace, dict, cycler, joiner, raise_exception,
// strftime_now.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/context.h"
#include "text/jinja/value.h"

namespace switchyard::jinja {

// namespace(…): the only object whose attributes `set` may change. The Context releases its
// contents.
class Namespace : public Object {
 public:
  std::string TypeName() const override { return "Namespace"; }
  std::string Repr() const override { return "<Namespace>"; }
  std::optional<Value> GetAttribute(Context& context, std::string_view name) override;
  void Release() override { attributes_ = Dict(); }

  void SetAttribute(Context& context, Value name, Value value);

 private:
  Dict attributes_;
};

// The global `name`; nullopt if there is none.
std::optional<Value> FindGlobal(std::string_view name);

}  // namespace switchyard::jinja
