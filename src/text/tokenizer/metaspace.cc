#include "text/tokenizer/metaspace.h"

#include "core/error.h"
#include "text/tokenizer/unicode.h"

namespace switchyard {
namespace {

Metaspace::Prepend ReadPrepend(const JsonNode& node) {
  const std::string name = node.is_null() ? "always" : node.String();
  if (name == "always") return Metaspace::Prepend::kAlways;
  if (name == "first") return Metaspace::Prepend::kFirst;
  if (name == "never") return Metaspace::Prepend::kNever;
  throw Invalid("{} is '{}', want always, first or never", node.where(), name);
}

}  // namespace

Metaspace ReadMetaspace(const JsonNode& node) {
  Metaspace out;
  AppendUtf8(node["replacement"].Character(), &out.replacement);
  out.prepend = ReadPrepend(node["prepend_scheme"]);
  out.split = node["split"].BoolOr(true);
  const JsonNode legacy =
      node["add_prefix_space"];  // older files: true for always, false for never
  if (!legacy.BoolOr(true) && out.prepend != Metaspace::Prepend::kNever) {
    if (!node["prepend_scheme"].is_null())
      throw Invalid("{} contradicts prepend_scheme", legacy.where());
    out.prepend = Metaspace::Prepend::kNever;
  }
  return out;
}

}  // namespace switchyard
