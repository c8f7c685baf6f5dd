// Text to token ids and back, from a checkpoint's files: the same ids and the same text as the
// libraries give that publish them (tokenizers and transformers, tiktoken).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

struct TokenizerParts;  // the components of one tokenizer.json (tokenizer_parts.h)

// Immutable once loaded: any number of threads may call the const methods at once.
class Tokenizer {
 public:
  // The tokenizer of a checkpoint's directory: tokenizer.json, else tiktoken.model (Kimi-K2's),
  // else tokenizer.model (SentencePiece's, of type BPE or Unigram; or tiktoken's, as Llama 3's),
  // completed by tokenizer_config.json, special_tokens_map.json and added_tokens.json
  // (configured_tokens.h). Errors as below, and kNotFound for a directory without any of the three.
  static std::unique_ptr<Tokenizer> FromDirectory(const std::filesystem::path& dir);
  // Whether FromDirectory finds a vocabulary there.
  static bool HasFiles(const std::filesystem::path& dir);

  // One file alone. Throw Error (kNotFound, kInvalid) that names the file and the key at fault. A
  // component type that Switchyard does not implement is refused here, never ignored.
  static std::unique_ptr<Tokenizer> FromFile(const std::filesystem::path& tokenizer_json);
  static std::unique_ptr<Tokenizer> FromJson(std::string_view json,
                                             std::string_view name_for_errors);

  static constexpr size_t kNoLimit = ~size_t{0};

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `text` is UTF-8; each invalid sequence counts as U+FFFD. Added tokens spelled out in the text
  // are recognised, special ones too; `add_special_tokens` runs the file's post-processor
  // (begin-of-sequence and the like).
  //
  // `limit`: stops soon after so many ids and returns the first of them, more than `limit`. For
  // callers that refuse such a text anyway.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens,
                              size_t limit = kNoLimit) const;

  // A run of a prompt. A chat template's own text is trusted, a user's message is not.
  struct Piece {
    std::string_view text;
    bool trusted;
  };

  // Encodes the concatenation of `pieces` as one string: normalisation, pre-tokenisation and merges
  // see through the borders. Only, a special token is recognised where every one of its characters
  // comes from trusted pieces; elsewhere its spelling is plain text. Without special tokens in
  // untrusted text, equal to Encode of the whole.
  std::vector<int32_t> EncodePieces(std::span<const Piece> pieces, bool add_special_tokens,
                                    size_t limit = kNoLimit) const;

  // The text of `ids`. Invalid byte sequences become U+FFFD; ids without a token are left out.
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // The token as the file spells it ("Ġhello", "▁hello", "<0x0A>"); empty for an id without a
  // token. The view lives as long as the tokenizer.
  std::string_view IdToToken(int32_t id) const;

  // The text of one token by itself, as log-probabilities show it: " hello" for both spellings
  // above, whatever a decoder strips at the start of a text. Bytes that are no whole character are
  // shown as U+FFFD.
  std::string TokenText(int32_t id) const;

  std::optional<int32_t> TokenToId(std::string_view token) const;

  // Largest id + 1; ids in between may be without a token.
  int VocabSize() const;

  bool IsSpecial(int32_t id) const;

 private:
  friend class IncrementalDetokenizer;

  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);

  static std::unique_ptr<Tokenizer> FromDocument(const nlohmann::json& document,
                                                 const std::string& name_for_errors);

  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace switchyard
