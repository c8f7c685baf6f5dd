#include "train/data/rollout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "core/error.h"
#include "text/tokenizer/base64.h"
#include "train/layers/router.h"

namespace switchyard::train {
namespace {

using Json = nlohmann::ordered_json;

// A member of an object; null if it is missing or null.
const Json* Find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// Texts of other sources may have a "meta_info" that is not an object.
const Json& MetaOf(const Json& json) {
  static const Json kNone = Json::object();
  const Json* meta = Find(json, "meta_info");
  return meta != nullptr && meta->is_object() ? *meta : kNone;
}

bool IsId(const Json& value) {
  return value.is_number_integer() && value.get<int64_t>() >= 0 &&
         value.get<int64_t>() <= std::numeric_limits<int32_t>::max();
}

std::vector<int32_t> IdsOf(const Json& list, const char* name, const std::string& where) {
  if (!list.is_array()) throw Invalid("{}: \"{}\" is not a list of token ids", where, name);
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!IsId(id))
      throw Invalid("{}: \"{}\": element {} is not a token id", where, name, ids.size());
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// The prompt of the response, of the request, or of both.
std::vector<int32_t> PromptOf(const Json& json, const Json& meta, const std::string& where) {
  const Json* sent = Find(meta, "prompt_token_ids");
  const Json* asked = Find(json, "input_ids");
  if (sent == nullptr && asked == nullptr) {
    throw Error(ErrorKind::kInvalid,
                fmt::format("{}: \"output_ids\" without the ids of the prompt, "
                            "\"meta_info.prompt_token_ids\" or \"input_ids\"",
                            where),
                "request them with \"return_prompt_token_ids\": true");
  }
  std::vector<int32_t> ids = sent != nullptr ? IdsOf(*sent, "meta_info.prompt_token_ids", where)
                                             : IdsOf(*asked, "input_ids", where);
  if (sent != nullptr && asked != nullptr && IdsOf(*asked, "input_ids", where) != ids) {
    throw Invalid("{}: \"input_ids\" and \"meta_info.prompt_token_ids\" differ", where);
  }
  return ids;
}

// The token id of an element of "output_token_logprobs"; −1: none. The elements of a list in
// Parquet have one type, so an id beside a log-probability is a float there.
int32_t IdBesideLogprob(const Json& value) {
  if (IsId(value)) return value.get<int32_t>();
  const double number = value.is_number_float() ? value.get<double>() : -1;
  const bool right =
      number >= 0 && number <= std::numeric_limits<int32_t>::max() && number == std::floor(number);
  return right ? static_cast<int32_t>(number) : -1;
}

std::vector<float> LogprobsOf(const Json& list, const std::vector<int32_t>& output,
                              const std::string& where) {
  constexpr const char* kName = "meta_info.output_token_logprobs";
  if (!list.is_array() || list.size() != output.size()) {
    throw Invalid(
        "{}: \"{}\" is not a list of {} log-probabilities, one for each of \"output_ids\"", where,
        kName, output.size());
  }
  std::vector<float> values;
  values.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& one = list[i];
    const bool right = one.is_array() && one.size() >= 2 && IdBesideLogprob(one[1]) == output[i] &&
                       (one[0].is_null() || one[0].is_number());
    if (!right) {
      throw Invalid("{}: \"{}\": element {} is not [log-probability, {}, …]", where, kName, i,
                    output[i]);
    }
    values.push_back(one[0].is_null() ? std::numeric_limits<float>::quiet_NaN()
                                      : one[0].get<float>());
  }
  return values;
}

}  // namespace

std::optional<RolloutTokens> ReadRollout(const Json& json, const std::string& where) {
  const Json* output = Find(json, "output_ids");
  if (output == nullptr) return std::nullopt;
  const Json& meta = MetaOf(json);
  RolloutTokens tokens;
  tokens.output = IdsOf(*output, "output_ids", where);
  if (tokens.output.empty()) throw Invalid("{}: \"output_ids\" is empty", where);
  tokens.prompt = PromptOf(json, meta, where);
  if (const Json* list = Find(meta, "output_token_logprobs"))
    tokens.logprobs = LogprobsOf(*list, tokens.output, where);
  return tokens;
}

std::optional<GivenExperts> ReadGivenExperts(const Json& json, const std::string& where) {
  const Json* own = Find(json, "routed_experts");
  const Json* sent = Find(MetaOf(json), "routed_experts");
  const Json* start = Find(json, "routed_experts_start_len");
  if (own != nullptr && sent != nullptr)
    throw Invalid("{}: both \"routed_experts\" and \"meta_info.routed_experts\"", where);
  if (own == nullptr && sent == nullptr) return std::nullopt;
  const Json& field = own != nullptr ? *own : *sent;
  const std::optional<std::string> bytes =
      field.is_string() ? BytesOfBase64(field.get_ref<const std::string&>()) : std::nullopt;
  if (!bytes) throw Invalid("{}: \"routed_experts\" is not base64", where);
  if (bytes->size() % sizeof(int32_t) != 0) {
    throw Invalid("{}: \"routed_experts\" has {} bytes, which are not int32 numbers", where,
                  bytes->size());
  }
  if (start != nullptr && !IsId(*start))
    throw Invalid("{}: \"routed_experts_start_len\" is not a number of tokens", where);
  GivenExperts given{.ids = std::vector<int32_t>(bytes->size() / sizeof(int32_t)),
                     .start = start == nullptr ? 0 : start->get<int64_t>()};
  if (!bytes->empty()) std::memcpy(given.ids.data(), bytes->data(), bytes->size());
  return given;
}

ModelShape ModelShape::Of(const ModelConfig& config) {
  ModelShape shape{.vocab_size = config.vocab_size, .moe_layers = {}};
  for (const LayerConfig& layer : config.layers) shape.moe_layers.push_back(layer.moe);
  if (!config.has_moe()) return shape;
  shape.num_experts = config.moe->router.num_experts;
  shape.top_k = config.moe->router.top_k;
  return shape;
}

std::vector<int32_t> ExpertsOfTokens(const GivenExperts& given, int64_t tokens,
                                     const ModelShape& shape, const std::string& where) {
  if (shape.top_k == 0) throw Invalid("{}: \"routed_experts\" for a model without experts", where);
  const int64_t layers = std::ssize(shape.moe_layers), k = shape.top_k, width = layers * k;
  const int64_t count = std::ssize(given.ids), rows = count / width;
  if (given.start > tokens) {
    throw Invalid("{}: \"routed_experts_start_len\" is {}, but the document has {} tokens", where,
                  given.start, tokens);
  }
  const int64_t all = tokens - given.start;
  // The last token of a response has no row.
  if (count % width != 0 || (rows != all && rows + 1 != all)) {
    throw Invalid(
        "{}: \"routed_experts\" has {} ids, want [rows, {} layers, top-{}] with a row for each of "
        "{} tokens{}, or for all but the last one: {} or {} ids",
        where, count, layers, k, tokens,
        given.start > 0 ? fmt::format(" from token {} on", given.start) : "", all * width,
        std::max<int64_t>(all - 1, 0) * width);
  }
  for (int64_t i = 0; i < rows * layers; ++i) {
    const int64_t layer = i % layers;
    const std::string fault = FaultOfGivenExperts(std::span(given.ids).subspan(i * k, k),
                                                  shape.moe_layers[layer] ? shape.num_experts : 0);
    if (fault.empty()) continue;
    throw Invalid("{}: \"routed_experts\": token {}, layer {}: {}", where, given.start + i / layers,
                  layer, fault);
  }
  std::vector<int32_t> experts(tokens * width, -1);
  std::ranges::copy(given.ids, experts.begin() + given.start * width);
  return experts;
}

}  // namespace switchyard::train
