#include "model/weights/stored_names.h"

#include <cctype>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr std::string_view kModel = "model.";

// Replaces the beginning `from` by `to`. Returns whether the name begins so.
bool ReplaceStart(std::string_view from, std::string_view to, std::string* name) {
  if (!name->starts_with(from)) return false;
  name->replace(0, from.size(), to);
  return true;
}

// Renames layers.N.attn.norm, but no other norm of the layer.
void RenameKvNorm(std::string* name) {
  constexpr std::string_view kLayers = "layers.", kSaved = ".attn.norm.",
                             kPublished = ".attn.kv_norm.";
  if (!name->starts_with(kLayers)) return;
  size_t end = kLayers.size();
  while (end < name->size() && std::isdigit(static_cast<unsigned char>((*name)[end])) != 0) ++end;
  if (name->compare(end, kSaved.size(), kSaved) == 0) name->replace(end, kSaved.size(), kPublished);
}

std::string NameOfDeepseekV4(std::string_view stored) {
  std::string name(stored);
  ReplaceStart(kModel, "", &name);
  if (ReplaceStart("embed_tokens.", "embed.", &name)) return name;
  if (ReplaceStart("lm_head.", "head.", &name)) return name;
  if (ReplaceStart("hc_head.hc_", "hc_head_", &name)) return name;
  RenameKvNorm(&name);
  return name;
}

}  // namespace

StoredNames StoredNamesOf(const StoredTensors& tensors) {
  for (const std::string_view name : {"model.hc_head.hc_fn", "hc_head.hc_fn", "hc_head_fn"})
    if (tensors.contains(name)) return StoredNames::kDeepseekV4;
  const bool bare =
      tensors.contains("embed_tokens.weight") && !tensors.contains("model.embed_tokens.weight");
  return bare ? StoredNames::kWithoutModel : StoredNames::kOfFamily;
}

std::string NameOfFamily(StoredNames names, std::string_view stored) {
  switch (names) {
    case StoredNames::kOfFamily:
      break;
    case StoredNames::kWithoutModel:
      for (const std::string_view part : {"embed_tokens.", "layers.", "norm."})
        if (stored.starts_with(part)) return std::string(kModel).append(stored);
      break;
    case StoredNames::kDeepseekV4:
      return NameOfDeepseekV4(stored);
  }
  return std::string(stored);
}

void RenameToFamily(StoredNames names, StoredTensors* tensors) {
  if (names == StoredNames::kOfFamily) return;
  StoredTensors renamed;
  while (!tensors->empty()) {
    auto node = tensors->extract(tensors->begin());
    const std::string stored = node.key();
    node.key() = NameOfFamily(names, stored);
    const auto result = renamed.insert(std::move(node));
    if (!result.inserted)
      throw Invalid("{}: tensor \"{}\" is stored twice, also as \"{}\"",
                    result.position->second.file, result.position->first, stored);
  }
  *tensors = std::move(renamed);
}

}  // namespace switchyard
