#include "text/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <queue>
#include <system_error>
#include <unordered_set>

#include "core/error.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/unicode.h"
#include "text/tokenizer/vocabulary.h"

namespace switchyard {
namespace {

constexpr int kBytes = 256;

using Pair = std::pair<int32_t, int32_t>;

uint64_t Key(Pair pair) {
  return uint64_t{static_cast<uint32_t>(pair.first)} << 32 | static_cast<uint32_t>(pair.second);
}

// A pair and its count when it was queued. Later, the count of a pair only decreases, except for
// pairs with the newest token, which get a new entry. An entry with an outdated count is queued
// again with the current count. So the first entry with a current count is the most frequent pair.
struct Candidate {
  int64_t count;
  Pair pair;
  bool operator<(const Candidate& other) const {  // the largest is merged first
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

struct Word {
  std::vector<int32_t> ids;
  int64_t count;
};

struct PairPlaces {
  int64_t count = 0;
  // Words that contain the pair. May hold duplicates, and words that no longer contain it.
  std::vector<int32_t> words;
};

// The state of one call of Learn.
class Merger {
 public:
  Merger(const BpeTrainingOptions& options, LearnedBpe* out) : options_(options), out_(*out) {}

  void AddBytes() {
    for (const std::string& token : options_.special_tokens) out_.tokens.push_back(token);
    std::vector<std::string> letters(kBytes);
    for (int b = 0; b < kBytes; ++b) {
      const char byte = static_cast<char>(b);
      AppendByteLevel({&byte, 1}, &letters[static_cast<size_t>(b)]);
    }
    std::sort(letters.begin(), letters.end());  // in the order of their code points
    for (std::string& letter : letters) {
      id_of_[letter] = static_cast<int32_t>(out_.tokens.size());
      length_.emplace(static_cast<int32_t>(out_.tokens.size()), 1);
      out_.tokens.push_back(std::move(letter));
    }
    for (const std::string& token : options_.special_tokens) specials_.insert(token);
  }

  void AddWord(std::string_view spelled, int64_t count) {
    Word word{{}, count};
    for (size_t i = 0; i < spelled.size();) {
      const size_t begin = i;
      NextCharacter(spelled, &i);
      word.ids.push_back(id_of_.at(std::string(spelled.substr(begin, i - begin))));
    }
    const auto index = static_cast<int32_t>(words_.size());
    for (size_t i = 1; i < word.ids.size(); ++i) {
      Count({word.ids[i - 1], word.ids[i]}, count, index);
    }
    words_.push_back(std::move(word));
  }

  void Run() {
    for (const auto& [key, places] : pairs_) {
      Push({static_cast<int32_t>(key >> 32), static_cast<int32_t>(key & 0xffffffff)}, places.count);
    }
    while (static_cast<int>(out_.tokens.size()) < options_.vocab_size && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto places = pairs_.find(Key(best.pair));
      if (places == pairs_.end()) continue;  // an outdated entry of a pair that has been merged
      const int64_t count = places->second.count;
      if (count != best.count) {
        Push(best.pair, count);
      } else {
        Merge(best.pair);
      }
    }
  }

 private:
  void Push(Pair pair, int64_t count) {
    if (count >= std::max<int64_t>(options_.min_frequency, 1) && Allowed(pair)) {
      queue_.push({count, pair});
    }
  }

  bool Allowed(Pair pair) const {
    return length_.at(pair.first) + length_.at(pair.second) <= options_.max_token_bytes &&
           !specials_.contains(Spelling(pair));
  }

  std::string Spelling(Pair pair) const {
    return out_.tokens[static_cast<size_t>(pair.first)] +
           out_.tokens[static_cast<size_t>(pair.second)];
  }

  void Count(Pair pair, int64_t change, int32_t word) {
    PairPlaces& places = pairs_[Key(pair)];
    places.count += change;
    if (change > 0 && (places.words.empty() || places.words.back() != word)) {
      places.words.push_back(word);
    }
  }

  // The id of the pair's merged token. Two pairs may have the same text; then both merges produce
  // the same token.
  int32_t TokenOf(Pair pair) {
    std::string spelling = Spelling(pair);
    const auto [it, added] =
        id_of_.emplace(std::move(spelling), static_cast<int32_t>(out_.tokens.size()));
    if (added) {
      length_[it->second] = length_.at(pair.first) + length_.at(pair.second);
      out_.tokens.push_back(it->first);
    }
    return it->second;
  }

  void Merge(Pair pair) {
    const int32_t token = TokenOf(pair);
    // A merged pair may appear again later, if other merges produce its two tokens next to each
    // other. Its merge is then already in the list.
    if (merged_.insert(Key(pair)).second) out_.merges.push_back(pair);
    // Moved out of the map, since the map may grow while words change.
    const std::vector<int32_t> places = std::move(pairs_.at(Key(pair)).words);
    std::map<Pair, int64_t> grown;  // pairs with the new token
    for (const int32_t place : places) MergeInWord(pair, token, place, &grown);
    pairs_.erase(Key(pair));
    for (const auto& entry : grown) {
      const auto it = pairs_.find(Key(entry.first));
      if (it != pairs_.end()) Push(entry.first, it->second.count);
    }
  }

  void MergeInWord(Pair pair, int32_t token, int32_t place, std::map<Pair, int64_t>* grown) {
    Word& word = words_[static_cast<size_t>(place)];
    std::vector<int32_t>& ids = word.ids;
    const auto starts = [&](size_t i) {
      return i + 1 < ids.size() && ids[i] == pair.first && ids[i + 1] == pair.second;
    };
    size_t first = 0;
    while (first < ids.size() && !starts(first)) ++first;
    if (first == ids.size()) return;  // already merged by an earlier visit
    for (size_t i = 1; i < ids.size(); ++i) Count({ids[i - 1], ids[i]}, -word.count, place);
    size_t to = first;
    for (size_t from = first; from < ids.size(); ++to) {
      const bool here = starts(from);
      const int32_t id = here ? token : ids[from];
      from += here ? 2 : 1;
      ids[to] = id;
    }
    ids.resize(to);
    for (size_t i = 1; i < ids.size(); ++i) {
      const Pair neighbours{ids[i - 1], ids[i]};
      Count(neighbours, word.count, place);
      if (neighbours.first == token || neighbours.second == token) (*grown)[neighbours] = 0;
    }
  }

  const BpeTrainingOptions& options_;
  LearnedBpe& out_;
  std::unordered_map<std::string, int32_t> id_of_;  // tokens that are not special
  std::unordered_map<int32_t, int> length_;         // length of a token in bytes
  std::unordered_set<std::string> specials_;
  std::vector<Word> words_;
  std::unordered_map<uint64_t, PairPlaces> pairs_;
  std::unordered_set<uint64_t> merged_;
  std::priority_queue<Candidate> queue_;
};

void Check(const BpeTrainingOptions& options) {
  std::unordered_set<std::string_view> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.empty() || !IsValidUtf8(token)) {
      throw Invalid("a special token is empty or not UTF-8");
    }
    if (!seen.insert(token).second) throw Invalid("special token {} is given twice", token);
    size_t first = 0;
    NextCharacter(token, &first);
    if (first == token.size()) {
      throw Invalid(
          "special token {} is a single character, which may be the spelling of a byte; want at "
          "least 2",
          token);
    }
  }
  const auto least = kBytes + static_cast<int>(options.special_tokens.size());
  if (options.vocab_size < least) {
    throw Invalid("a vocabulary of {} tokens is too small for {} special tokens and {} bytes",
                  options.vocab_size, options.special_tokens.size(), kBytes);
  }
  if (options.vocab_size > kMaxTokenId) {
    throw Invalid("a vocabulary of {} tokens is too large; want at most {}", options.vocab_size,
                  kMaxTokenId);
  }
}

}  // namespace

BpeTrainer::BpeTrainer(const nlohmann::json& pre_tokenizer)
    : pre_tokenizer_(MakePreTokenizer(JsonNode(pre_tokenizer, "pre_tokenizer"))) {
  if (pre_tokenizer_ == nullptr)
    throw Invalid("pre_tokenizer: want a byte-level pre-tokenizer, got null");
}

void BpeTrainer::Add(std::string_view text) {
  Utf8Repair repair;
  std::string valid = IsValidUtf8(text) ? std::string(text) : repair.Push(text) + repair.Finish();
  const size_t size = valid.size();
  if (size == 0) return;
  Words words{std::move(valid), {{0, size}}, true};
  pre_tokenizer_->Apply(&words);
  for (const TextRange& piece : words.pieces) {
    ++words_[words.text.substr(piece.begin, piece.size())];
  }
}

LearnedBpe BpeTrainer::Learn(const BpeTrainingOptions& options) const {
  Check(options);
  LearnedBpe out;
  Merger merger(options, &out);
  merger.AddBytes();
  for (const auto& [word, count] : words_) merger.AddWord(word, count);
  merger.Run();
  return out;
}

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json AddedToken(int32_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

// A post-processor that puts the bos token before each text; null if there is no bos token.
Json PostProcessor(const LearnedBpe& bpe, const std::string& bos) {
  if (bos.empty()) return nullptr;
  const auto id = std::find(bpe.tokens.begin(), bpe.tokens.end(), bos) - bpe.tokens.begin();
  const Json begin = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const auto sequence = [](const char* which, int type) {
    return Json{{"Sequence", {{"id", which}, {"type_id", type}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({begin, sequence("A", 0)})},
          {"pair", Json::array({begin, sequence("A", 0), begin, sequence("B", 1)})},
          {"special_tokens",
           {{bos, {{"id", bos}, {"ids", Json::array({id})}, {"tokens", Json::array({bos})}}}}}};
}

Json Model(const LearnedBpe& bpe) {
  Json vocab = Json::object();
  auto& entries = vocab.get_ref<Json::object_t&>();
  entries.reserve(bpe.tokens.size());  // emplace_back, as operator[] searches linearly
  for (size_t id = 0; id < bpe.tokens.size(); ++id) entries.emplace_back(bpe.tokens[id], id);
  Json merges = Json::array();
  for (const auto& [left, right] : bpe.merges) {
    merges.push_back(
        {bpe.tokens[static_cast<size_t>(left)], bpe.tokens[static_cast<size_t>(right)]});
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

Json TokenizerJson(const LearnedBpe& bpe, const std::vector<std::string>& special_tokens,
                   const TokenizerFileOptions& options) {
  Json added = Json::array();
  for (size_t id = 0; id < special_tokens.size(); ++id) {
    added.push_back(AddedToken(static_cast<int32_t>(id), special_tokens[id]));
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", nullptr},
          {"pre_tokenizer", ByteLevelPreTokenizer(options.pattern)},
          {"post_processor", PostProcessor(bpe, options.bos)},
          {"decoder",
           {{"type", "ByteLevel"},
            {"add_prefix_space", true},
            {"trim_offsets", true},
            {"use_regex", true}}},
          {"model", Model(bpe)}};
}

Json ConfigJson(const std::vector<std::string>& special_tokens,
                const TokenizerFileOptions& options) {
  Json decoder = Json::object();
  for (size_t id = 0; id < special_tokens.size(); ++id) {
    Json token = AddedToken(static_cast<int32_t>(id), special_tokens[id]);
    token.erase("id");
    decoder[std::to_string(id)] = std::move(token);
  }
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"added_tokens_decoder", std::move(decoder)}};
  const auto set = [&](const char* key, const std::string& value) {
    if (!value.empty()) config[key] = value;
  };
  set("bos_token", options.bos);
  set("eos_token", options.eos);
  set("pad_token", options.pad);
  set("chat_template", options.chat_template);
  if (options.max_length > 0) config["model_max_length"] = options.max_length;
  return config;
}

void WriteWhole(const fs::path& path, const Json& json) {
  const fs::path part = path.string() + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out << json.dump(1) << '\n';
  out.close();
  std::error_code failed;
  if (out) fs::rename(part, path, failed);
  if (out && !failed) return;
  fs::remove(part, failed);
  throw Resource("{}: cannot be written", path.string());
}

void CheckSpecial(const char* role, const std::string& token,
                  const std::vector<std::string>& special_tokens) {
  if (token.empty() || std::ranges::find(special_tokens, token) != special_tokens.end()) return;
  throw Invalid("the {} token {} is not in the list of special tokens", role, token);
}

}  // namespace

const char* const kWordPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

const char* const kDefaultChatTemplate =
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

nlohmann::json ByteLevelPreTokenizer(const std::string& pattern) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            {{"type", "ByteLevel"},
             {"add_prefix_space", false},
             {"trim_offsets", true},
             {"use_regex", false}}}}};
}

void WriteTokenizer(const fs::path& dir, const LearnedBpe& bpe,
                    const std::vector<std::string>& special_tokens,
                    const TokenizerFileOptions& options) {
  CheckSpecial("bos", options.bos, special_tokens);
  CheckSpecial("eos", options.eos, special_tokens);
  CheckSpecial("pad", options.pad, special_tokens);
  std::error_code failed;
  fs::create_directories(dir, failed);
  if (failed) throw Resource("{}: cannot create the directory: {}", dir.string(), failed.message());
  WriteWhole(dir / "tokenizer.json", TokenizerJson(bpe, special_tokens, options));
  WriteWhole(dir / "tokenizer_config.json", ConfigJson(special_tokens, options));
}

}  // namespace switchyard
