// Converts text to token ids and back, from a checkpoint's files. Ids and texts are those of the
// reference libraries (tokenizers, transformers, tiktoken).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

struct TokenizerParts;  // the components of one tokenizer.json (tokenizer_parts.h)

// Immutable once loaded; const methods are thread-safe.
class Tokenizer {
 public:
  // Loads the tokenizer of a checkpoint directory from the first of these files that exists:
  // tokenizer.json; tiktoken.model (Kimi-K2); tokenizer.model (SentencePiece of type BPE or
  // Unigram, or tiktoken as in Llama 3). tokenizer_config.json, special_tokens_map.json and
  // added_tokens.json complete it (tokenizer_reader.h). Throws the errors of FromFile, and
  // kNotFound if none of the first three files exists.
  static std::unique_ptr<Tokenizer> FromDirectory(const std::filesystem::path& dir);
  // True if FromDirectory finds a vocabulary in `dir`.
  static bool HasFiles(const std::filesystem::path& dir);

  // Loads one file alone. Throws Error (kNotFound, kInvalid) that names the file and the wrong key.
  // An unsupported component type is an error, never ignored.
  static std::unique_ptr<Tokenizer> FromFile(const std::filesystem::path& tokenizer_json);
  static std::unique_ptr<Tokenizer> FromJson(std::string_view json,
                                             std::string_view name_for_errors);

  static constexpr size_t kNoLimit = ~size_t{0};

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `text` is UTF-8; each invalid sequence becomes U+FFFD. Recognises added tokens in the text,
  // including special ones; `add_special_tokens` runs the file's post-processor (begin-of-sequence
  // and similar).
  //
  // `limit`: encoding stops soon after this number of ids, and the result then has more than
  // `limit` ids. For callers that reject longer texts.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens,
                              size_t limit = kNoLimit) const;

  // A run of a prompt. A chat template's own text is trusted, a user's message is not.
  struct Piece {
    std::string_view text;
    bool trusted;
  };

  // Encodes the concatenation of `pieces` as one string: normalisation, pre-tokenisation and merges
  // cross the borders. A special token is recognised only if all of its characters come from
  // trusted pieces; otherwise its spelling is plain text. If untrusted text spells no special
  // token, the result equals Encode of the whole.
  std::vector<int32_t> EncodePieces(std::span<const Piece> pieces, bool add_special_tokens,
                                    size_t limit = kNoLimit) const;

  // Decodes `ids` to text. Invalid byte sequences become U+FFFD; ids without a token are skipped.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // The token as spelled in the file ("Ġhello", "▁hello", "<0x0A>"); empty for an id without a
  // token. The view is valid as long as the tokenizer.
  std::string_view IdToToken(int32_t id) const;

  // The text of a single token for log-probabilities: " hello" for "Ġhello" and for "▁hello", even
  // if the decoder strips spaces at the start of a text. Incomplete characters become U+FFFD.
  std::string TokenText(int32_t id) const;

  std::optional<int32_t> TokenToId(std::string_view token) const;

  // The id of "bos_token", "eos_token" or "pad_token". FromDirectory reads these names: a
  // SentencePiece model names bos and eos, and tokenizer_config.json overrides them. If it has no
  // added_tokens_decoder, special_tokens_map.json overrides both files. nullopt if there is no such
  // token, and after FromFile or FromJson.
  std::optional<int32_t> NamedToken(std::string_view name) const;

  // The largest id plus 1. Not every id below this value has a token.
  int VocabSize() const;

  bool IsSpecial(int32_t id) const;

 private:
  friend class IncrementalDetokenizer;

  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);

  static std::unique_ptr<Tokenizer> FromDocument(const nlohmann::json& document,
                                                 const std::string& name_for_errors);

  std::unique_ptr<const TokenizerParts> parts_;
  std::map<std::string, int32_t, std::less<>> named_;
};

}  // namespace switchyard
