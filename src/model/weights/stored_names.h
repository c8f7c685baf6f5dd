// Names of tensors in safetensors files, and the names by which loaders find them.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "model/weights/safetensors.h"

namespace switchyard {

using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

// How the names of a checkpoint differ from the names of its family (TensorNames).
enum class StoredNames : uint8_t {
  kOfFamily,      // not at all
  kWithoutModel,  // saved from a decoder without its head (transformers' ...Model): no "model."
  // DeepSeek-V4 as saved by transformers 5.24, which has the published names except for a few:
  // "model." precedes them, the embedding is embed_tokens, the head's streams are
  // hc_head.hc_NAME, and kv_norm is norm. Saved without its head, only kv_norm differs.
  kDeepseekV4,
};

StoredNames StoredNamesOf(const StoredTensors& tensors);
// The name of the family for a name in the files.
std::string NameOfFamily(StoredNames names, std::string_view stored);
// Renames all tensors. Error kInvalid if two tensors have one name then.
void RenameToFamily(StoredNames names, StoredTensors* tensors);

}  // namespace switchyard
