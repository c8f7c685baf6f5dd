// Keys: gguf-py/gguf/constants.py and src/llama-vocab.cpp of
// https://github.com/ggml-org/llama.cpp.
#include "text/tokenizer/gguf_tokenizer.h"

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/gguf_patterns.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;
using PieceType = SentencePieceModel::PieceType;

constexpr std::string_view kModel = "tokenizer.ggml.model", kTokens = "tokenizer.ggml.tokens";

// The vocabulary, indexed by id. Refers to memory of the files.
struct Vocab {
  const GgufFiles& files;
  const std::vector<std::string>& tokens;
  const std::vector<int64_t>* types = nullptr;  // null: all are normal

  PieceType TypeOf(size_t id) const {
    return types ? static_cast<PieceType>((*types)[id]) : PieceType::kNormal;
  }
};

// Checks that the list `key` has one entry for each token.
void CheckLength(const GgufFiles& files, const char* key, size_t length, size_t tokens) {
  if (length == tokens) return;
  throw Invalid("{}: {} has {} entries; want one for each of the {} tokens", files.name(), key,
                length, tokens);
}

Vocab VocabOf(const GgufFiles& files) {
  const auto* tokens = files.Strings(kTokens);
  if (tokens == nullptr) throw Invalid("{}: {} is missing", files.name(), kTokens);
  constexpr const char* kTypes = "tokenizer.ggml.token_type";
  const auto* types = files.Ints(kTypes);
  if (types != nullptr) CheckLength(files, kTypes, types->size(), tokens->size());
  return {files, *tokens, types};
}

// Splits "left right" at the space in between. A token may itself begin with a space.
std::pair<std::string, std::string> SplitMerge(const std::string& merge, const GgufFiles& files) {
  const size_t space = merge.find(' ', 1);
  if (space == std::string::npos || space + 1 == merge.size())
    throw Invalid("{}: tokenizer.ggml.merges has \"{}\"; want two tokens", files.name(),
                  merge.substr(0, 60));
  return {merge.substr(0, space), merge.substr(space + 1)};
}

Json AddedTokens(const Vocab& vocab) {
  Json list = Json::array();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const PieceType type = vocab.TypeOf(id);
    if (type != PieceType::kControl && type != PieceType::kUserDefined) continue;
    list.push_back({{"id", id},
                    {"content", vocab.tokens[id]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", type == PieceType::kControl}});
  }
  return list;
}

Json BpeModelOf(const Vocab& vocab, bool ignore_merges) {
  const GgufFiles& files = vocab.files;
  const auto* merges = files.Strings("tokenizer.ggml.merges");
  if (merges == nullptr) throw Invalid("{}: tokenizer.ggml.merges is missing", files.name());
  Json pairs = Json::array();
  std::unordered_set<std::string> merged;
  for (const std::string& merge : *merges) {
    auto [left, right] = SplitMerge(merge, files);
    merged.insert(left);
    merged.insert(right);
    merged.insert(left + right);
    pairs.push_back(Json::array({std::move(left), std::move(right)}));
  }
  Json ids = Json::object();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    // Other tokens are added tokens, which are matched before words are split, or unused ids with
    // placeholder texts. They stay out of the vocabulary unless a merge needs them.
    const bool word =
        vocab.TypeOf(id) == PieceType::kNormal || vocab.TypeOf(id) == PieceType::kByte;
    if (!word && !merged.contains(vocab.tokens[id])) continue;
    if (!ids.emplace(vocab.tokens[id], id).second)
      throw Invalid("{}: {} has '{}' twice", files.name(), kTokens, vocab.tokens[id]);
  }
  return {{"type", "BPE"},
          {"unk_token", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", ignore_merges},
          {"vocab", std::move(ids)},
          {"merges", std::move(pairs)}};
}

std::optional<GgufPreTokenizer> PreTokenizerOf(const GgufFiles& files) {
  const std::string* name = files.String("tokenizer.ggml.pre");
  return FindGgufPreTokenizer(name ? *name : "default");
}

Json ByteLevelBpe(const GgufFiles& files) {
  const Vocab vocab = VocabOf(files);
  auto pre = PreTokenizerOf(files);
  if (!pre) {
    const std::string* name = files.String("tokenizer.ggml.pre");
    throw Invalid(
        "{}: tokenizer.ggml.pre is {}, a pre-tokenizer that is not supported; want {}, or give the "
        "model's own tokenizer with --tokenizer-path DIR",
        files.name(), name ? *name : "missing", GgufPreTokenizerNames());
  }
  return {{"added_tokens", AddedTokens(vocab)},
          {"normalizer", std::move(pre->normalizer)},
          {"pre_tokenizer", std::move(pre->pre_tokenizer)},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", BpeModelOf(vocab, pre->ignore_merges)}};
}

Json SentencePieceBpe(const GgufFiles& files) {
  const Vocab vocab = VocabOf(files);
  constexpr const char* kScores = "tokenizer.ggml.scores";
  const auto* scores = files.Numbers(kScores);
  if (scores == nullptr) throw Invalid("{}: {} is missing", files.name(), kScores);
  CheckLength(files, kScores, scores->size(), vocab.tokens.size());
  SentencePieceModel model{.kind = SentencePieceModel::Kind::kBpe};
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const PieceType type = vocab.TypeOf(id);
    model.pieces.push_back({vocab.tokens[id], static_cast<float>((*scores)[id]), type});
    model.byte_fallback |= type == PieceType::kByte;
    if (type == PieceType::kUnknown) {
      model.unk_id = static_cast<int32_t>(id);
      model.unk_piece = vocab.tokens[id];
    }
  }
  model.add_dummy_prefix = files.Bool("tokenizer.ggml.add_space_prefix").value_or(true);
  model.remove_extra_whitespaces =
      files.Bool("tokenizer.ggml.remove_extra_whitespaces").value_or(false);
  if (const auto* map = files.Ints("tokenizer.ggml.precompiled_charsmap"))
    for (const int64_t byte : *map) model.precompiled_charsmap.push_back(static_cast<char>(byte));
  // As in llama.cpp, the prefix is also added after each special token (`legacy`).
  return TokenizerOfSentencePiece(model, /*legacy=*/true, files.name());
}

// tokenizer.chat_template and the named templates, in the form of tokenizer_config.json.
Json ChatTemplates(const GgufFiles& files) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  const std::string* only = files.String(kKey);
  Json list = Json::array();
  for (const auto& [key, value] : files.metadata()) {
    if (!key.starts_with(kKey) || key.size() <= kKey.size() + 1 || key[kKey.size()] != '.')
      continue;
    list.push_back({{"name", key.substr(kKey.size() + 1)}, {"template", *files.String(key)}});
  }
  if (list.empty()) return only ? Json(*only) : Json();
  if (only) list.push_back({{"name", "default"}, {"template", *only}});
  return list;
}

}  // namespace

bool HasGgufTokenizer(const GgufFiles& files) { return files.Has(kTokens); }

Json TokenizerOfGguf(const GgufFiles& files) {
  const std::string* model = files.String(kModel);
  if (model == nullptr)
    throw Error(ErrorKind::kInvalid, fmt::format("{}: {} is missing", files.name(), kModel),
                "give a tokenizer with --tokenizer-path DIR");
  if (*model == "gpt2") return ByteLevelBpe(files);
  if (*model == "llama") return SentencePieceBpe(files);
  throw Invalid(
      "{}: {} is \"{}\"; want gpt2 or llama, or give the model's own tokenizer with "
      "--tokenizer-path DIR",
      files.name(), kModel, *model);
}

Json TokenizerConfigOfGguf(const GgufFiles& files) {
  Json config = Json::object();
  const auto* tokens = files.Strings(kTokens);
  const auto name = [&](const char* token, const char* key) {
    const auto id = files.Int(key);
    if (!id || tokens == nullptr) return;
    if (*id < 0 || *id >= static_cast<int64_t>(tokens->size()))
      throw Invalid("{}: {} is {}; want 0 to {}", files.name(), key, *id,
                    static_cast<int64_t>(tokens->size()) - 1);
    config[token] = (*tokens)[static_cast<size_t>(*id)];
  };
  name("bos_token", "tokenizer.ggml.bos_token_id");
  name("eos_token", "tokenizer.ggml.eos_token_id");
  name("unk_token", "tokenizer.ggml.unknown_token_id");
  name("pad_token", "tokenizer.ggml.padding_token_id");
  const std::string* model = files.String(kModel);
  const auto pre = PreTokenizerOf(files);
  const bool adds_bos = model != nullptr && *model == "llama" ? true : pre && pre->add_bos;
  config["add_bos_token"] = files.Bool("tokenizer.ggml.add_bos_token").value_or(adds_bos);
  config["add_eos_token"] = files.Bool("tokenizer.ggml.add_eos_token").value_or(false);
  if (Json chat = ChatTemplates(files); !chat.is_null()) config["chat_template"] = std::move(chat);
  return config;
}

}  // namespace switchyard
