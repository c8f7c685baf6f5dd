// The "model" of tokenizer.json of type BPE: encodes words to ids by byte-pair encoding.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/merge_table.h"
#include "text/tokenizer/vocabulary.h"

namespace switchyard {

// Immutable, thread-safe; each thread needs its own Scratch.
class BpeModel {
 public:
  // Buffers that Encode reuses across words.
  class Scratch;

  // Throws Error for other types, unsupported options, merges of unknown tokens, and duplicate ids.
  explicit BpeModel(const JsonNode& node);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Appends the ids of one word: O(n log n) for n characters. A character without a token becomes
  // byte tokens, becomes the unknown token or is dropped, depending on the file.
  void Encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  static constexpr char32_t kDirectCharacters = 0x400;

  void ReadVocabulary(const JsonNode& vocab);
  void ReadMerges(const JsonNode& merges);
  void FillLookups();

  int32_t IdOfCharacter(std::string_view character, char32_t codepoint) const;
  bool AppendBytes(std::string_view character, Scratch* scratch) const;
  void SplitCharacters(std::string_view word, Scratch* scratch) const;
  void Merge(Scratch* scratch) const;
  void PushMerge(int32_t left, Scratch* scratch) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  int32_t unknown_id_ = -1;  // -1: unknown characters are dropped
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  std::array<int32_t, kDirectCharacters> id_of_character_;  // -1: no token
  std::array<int32_t, 256> id_of_byte_;                     // of "<0x00>" to "<0xFF>"; -1: no token
};

class BpeModel::Scratch {
 private:
  friend class BpeModel;

  struct Symbol {
    int32_t id;        // -1: merged into the symbol to the left
    int32_t previous;  // index, -1 at the ends
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t left;  // index of the left symbol
    int32_t id;    // id of the merged pair
  };

  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace switchyard
