// Names of tensors in GGUF files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/gguf_files.h"
#include "model/config.h"

namespace switchyard {

// Where a GGUF file holds a tensor of a Hugging Face checkpoint. Code of the families (families/)
// refers to tensors by their names in checkpoints.
struct GgufPlace {
  enum class Rows : uint8_t {
    kSame,
    // llama.cpp's architecture llama rotates pairs (2i, 2i + 1) of a head's rows; the checkpoint's
    // rows i and i + D / 2 form such a pair.
    kPairs,
    // kv_b_proj, as attn_k_b [heads, kv_lora, nope] (transposed) and attn_v_b [heads, v, kv_lora].
    kLatent,
  };
  std::string tensor;   // empty: GGUF has no such tensor
  int64_t expert = -1;  // index in a stack [experts, …]; -1: no stack
  Rows rows = Rows::kSame;
  int64_t pairs_of = 0;  // kPairs: number of heads
  // A tensor may hold `parts` matrices of an expert, one after another by rows. This matrix has
  // index `second` among them: for gate and up rows in one tensor, up has index 1 of 2 parts.
  int64_t second = 0, parts = 1;
};

// `name`: "model.layers.3.mlp.experts.7.up_proj.weight".
GgufPlace PlaceInGguf(const GgufFiles& files, const ModelConfig& config, std::string_view name);

// The linears whose matrices a tensor holds: "model.layers.3.mlp.experts.up_proj", without the
// expert's number and in the spellings of all families. Empty: none, or none that may stay packed.
std::vector<std::string> ModulesOfGguf(std::string_view tensor);

// Whether the routed experts of all layers are stored in the type. False if there are none.
bool AllExpertsStoredAs(const GgufFiles& files, GgmlTypeId type);

}  // namespace switchyard
