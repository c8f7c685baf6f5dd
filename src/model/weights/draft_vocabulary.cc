#include "model/weights/draft_vocabulary.h"

#include <cstring>
#include <numeric>
#include <string_view>

#include "core/error.h"
#include "core/format.h"
#include "model/weights/safetensors.h"

namespace switchyard {
namespace {

constexpr std::string_view kTable = "d2t";

int64_t Element(const StoredTensor& tensor, int64_t i) {
  if (tensor.dtype == DType::kI32) {
    int32_t value = 0;
    std::memcpy(&value, tensor.data + i * sizeof value, sizeof value);
    return value;
  }
  int64_t value = 0;
  std::memcpy(&value, tensor.data + i * sizeof value, sizeof value);
  return value;
}

}  // namespace

std::vector<int32_t> LoadDraftVocabulary(const std::filesystem::path& dir,
                                         const ModelConfig& config, bool read_data) {
  if (config.reduced_head) return config.reduced_head->tokens;
  if (!config.eagle || config.eagle->draft_vocab == 0) return {};
  const int64_t rows = config.eagle->draft_vocab;
  std::vector<int32_t> tokens(rows);
  std::iota(tokens.begin(), tokens.end(), 0);
  if (!read_data) return tokens;
  const Checkpoint checkpoint(dir);
  const StoredTensor* const table = checkpoint.Find(kTable);
  if (!table)
    throw NotFound(
        "{}: tensor \"{}\" is missing; draft_vocab_size is {}, so the head has a row for "
        "some of the {} tokens only",
        dir.string(), kTable, rows, config.vocab_size);
  const bool integers = table->dtype == DType::kI64 || table->dtype == DType::kI32;
  if (!integers || table->shape != std::vector<int64_t>{rows})
    throw Invalid("{}: tensor \"{}\" is {} [{}]; want int64 or int32 [{}], by draft_vocab_size",
                  table->file, kTable, Name(table->dtype), Joined(table->shape, ", "), rows);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t offset = Element(*table, i);
    if (offset < -i || offset >= config.vocab_size - i)
      throw Invalid("{}: tensor \"{}\" gives row {} the offset {}; want tokens 0 to {}",
                    table->file, kTable, i, offset, config.vocab_size - 1);
    tokens[i] = static_cast<int32_t>(i + offset);
  }
  return tokens;
}

}  // namespace switchyard
