// Byte-pair encoding: the table of merges, their limit, and the model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace switchyard {

// The merges of BPE: pairs of tokens, their results and ranks.

struct PairMerge {
  int32_t rank;  // lower merges first
  int32_t id;    // id of the merged pair
};

// Flat hash table from pairs of ids, with linear probing: the lookup is the innermost step of
// encoding.
class MergeTable {
 public:
  explicit MergeTable(size_t merges = 0);

  // Sets the merge of a pair or replaces it. There may be at most `merges` distinct pairs.
  void Set(int32_t left, int32_t right, PairMerge merge);
  // Returns null if the pair does not merge.
  const PairMerge* Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair;
    PairMerge merge;
  };

  size_t SlotOf(uint64_t pair) const;

  std::vector<Slot> slots_;  // their number is a power of two; at most half are used
  int shift_;                // 64 - log2 of the number of slots
};

// Limits the work of deriving merges from a vocabulary, which tries every split of every token.

// Files of SentencePiece and tiktoken contain tokens, but no merges. The time to derive the merges
// grows with the square of a token's length, and tokens that are prefixes of each other have many
// merges. Lives during one derivation. Used by one thread.
class MergeBudget {
 public:
  // `file`: name for errors; must outlive this object.
  explicit MergeBudget(const std::string& file) : file_(file) {}

  // Call before all splits of a token of `bytes` bytes are tried. Throws Error kInvalid if a limit
  // is exceeded.
  void AddToken(size_t bytes) {
    if (bytes > kMaxTokenBytes) {
      throw Invalid("{}: has a token of {} bytes, at most {} are allowed", file_, bytes,
                    kMaxTokenBytes);
    }
    compared_ += bytes * bytes;
    if (compared_ > kMaxCompared) {
      throw Invalid("{}: the tokens are too long in total to derive merges", file_);
    }
  }
  // Call for each merge that was found. Throws Error kInvalid if there are too many.
  void AddMerge() {
    if (++merges_ > kMaxMerges) {
      throw Invalid("{}: the tokens have more than {} merges", file_, kMaxMerges);
    }
  }

 private:
  static constexpr size_t kMaxTokenBytes = 4096;
  static constexpr size_t kMaxCompared = size_t{1} << 32;  // a few seconds
  static constexpr size_t kMaxMerges = size_t{1} << 21;

  const std::string& file_;
  size_t compared_ = 0;  // bytes
  size_t merges_ = 0;
};

// The "model" of tokenizer.json of type BPE: encodes words to ids by byte-pair encoding.

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
