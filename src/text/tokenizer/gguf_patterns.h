// Pre-tokenizers by the names that GGUF files give them (tokenizer.ggml.pre).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard {

// Components of tokenizer.json, and the options that a name implies.
struct GgufPreTokenizer {
  nlohmann::json pre_tokenizer, normalizer;
  bool ignore_merges = false;
  bool add_bos = false;  // unless tokenizer.ggml.add_bos_token overrides it
};

// The pre-tokenizer of this name; nullopt if the name is unknown.
std::optional<GgufPreTokenizer> FindGgufPreTokenizer(std::string_view name);
std::string GgufPreTokenizerNames();  // the known names, for error messages

}  // namespace switchyard
