// Loads any bytes as a tokenizer.json: the result is an Error, or a tokenizer that encodes and
// decodes any input.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace switchyard {
namespace {

constexpr size_t kMaxInput = 64 << 10;
constexpr std::string_view kTexts[] = {"",
                                       " ",
                                       "Hello  world, it's 12345\n\n",
                                       "<s>[INST] a</s>",
                                       "e\u0301 \u4e13\u5bb6 \U0001F600",
                                       "\xff\xc3(\xe4\xb8",
                                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"};

void CheckDecoding(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skip : {false, true}) {
    IncrementalDetokenizer incremental(tokenizer, skip);
    std::string text;
    for (const int32_t id : ids) text += incremental.Push({&id, 1});
    text += incremental.Finish();
    CHECK_EQ(text, tokenizer.Decode(ids, skip));
  }
}

void UseTokenizer(const Tokenizer& tokenizer) {
  for (const std::string_view text : kTexts) {
    const std::vector<int32_t> ids = tokenizer.Encode(text, true);
    CheckDecoding(tokenizer, ids);
    for (const int32_t id : ids) CHECK(0 <= id && id < tokenizer.VocabSize());

    const Tokenizer::Piece pieces[] = {{text.substr(0, text.size() / 2), true},
                                       {text.substr(text.size() / 2), false}};
    tokenizer.EncodePieces(pieces, false);
  }
  std::vector<int32_t> all;
  for (int32_t id = -1; id < 300; ++id) {
    all.push_back(id);
    tokenizer.TokenText(id);
  }
  CheckDecoding(tokenizer, all);
}

}  // namespace
}  // namespace switchyard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > switchyard::kMaxInput) return 0;
  try {
    const std::string_view json(reinterpret_cast<const char*>(data), size);
    switchyard::UseTokenizer(*switchyard::Tokenizer::FromJson(json, "tokenizer.json"));
  } catch (const switchyard::Error&) {
  }
  return 0;
}
