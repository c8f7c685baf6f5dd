// The settings of generation_config.json in the metadata of a GGUF file.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "model/gguf/gguf_config.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

// Texts of tokens that end a turn. Converters name only one or two of a model's such tokens.
constexpr std::array<std::string_view, 7> kEndTokens = {
    "<|endoftext|>",   "<|im_end|>", "<|eot_id|>", "<|eom_id|>",
    "<|end_of_text|>", "<|return|>", "<|call|>"};

std::vector<int64_t> EndTokens(const GgufFiles& files) {
  constexpr int64_t kControl = 3;  // token_type
  std::vector<int64_t> ids;
  const auto add = [&](int64_t id) {
    if (!std::ranges::count(ids, id)) ids.push_back(id);
  };
  for (const char* key : {"eos", "eot", "eom"})
    if (const auto id = files.Int(fmt::format("tokenizer.ggml.{}_token_id", key))) add(*id);
  const auto* tokens = files.Strings("tokenizer.ggml.tokens");
  const auto* types = files.Ints("tokenizer.ggml.token_type");
  if (tokens == nullptr || types == nullptr || types->size() != tokens->size()) return ids;
  for (size_t i = 0; i < tokens->size(); ++i)
    if ((*types)[i] == kControl && std::ranges::count(kEndTokens, (*tokens)[i]))
      add(static_cast<int64_t>(i));
  return ids;
}

}  // namespace

std::string GgufGeneration(const GgufFiles& files) {
  Json json = {{"eos_token_id", EndTokens(files)}};
  if (const auto bos = files.Int("tokenizer.ggml.bos_token_id")) json["bos_token_id"] = *bos;
  const std::pair<const char*, const char*> options[] = {
      {"temp", "temperature"}, {"top_k", "top_k"}, {"top_p", "top_p"}, {"min_p", "min_p"}};
  for (const auto& [key, name] : options) {
    const std::string full = fmt::format("general.sampling.{}", key);
    if (const auto value = files.Number(full))
      json[name] =
          std::string_view(name) == "top_k" ? Json(files.Int(full).value_or(0)) : Json(*value);
  }
  return json.dump();
}

}  // namespace switchyard
