#include "moe/dispatchers/environment.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace switchyard {
namespace {

// An empty variable counts as unset.
std::optional<std::string_view> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> Number(const char* name, int least) {
  const auto text = Variable(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least)
    throw Invalid("environment variable {}={}: want a number from {} to {}", name, *text, least,
                  std::numeric_limits<int>::max());
  return value;
}

bool IsOn(const char* name) {
  const auto text = Variable(name);
  if (!text) return false;
  for (const std::string_view on : {"1", "true", "True", "yes", "y", "on"})
    if (*text == on) return true;
  for (const std::string_view off : {"0", "false", "False", "no", "n", "off"})
    if (*text == off) return false;
  throw Invalid("environment variable {}={}: want true or false", name, *text);
}

}  // namespace

void ApplyMoeEnvironment(MoeOptions* options) {
  if (const auto tokens = Number("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 1))
    options->max_dispatch_tokens_per_rank = *tokens;
  if (IsOn("SGLANG_DEEPEP_BF16_DISPATCH")) options->dispatcher_output_dtype = "bf16";
  if (const auto tokens = Number("DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS", 1))
    options->long_seq_per_round_tokens = *tokens;
  if (const auto rounds = Number("DEEPEP_NORMAL_LONG_SEQ_ROUND", 1))
    options->long_seq_rounds = *rounds;
  options->combine_long_seq = IsOn("DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ");
  for (const char* name : {"HCCL_BUFFSIZE", "DEEPEP_HCCL_BUFFSIZE"})
    if (const auto mib = Number(name, 1)) options->hccl_buffer_mib = *mib;
}

}  // namespace switchyard
