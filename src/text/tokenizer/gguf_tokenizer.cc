// Pre-tokenizers by the names that GGUF files give them.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"
#include "text/tokenizer/tokenizer_reader.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

// Patterns are those of the models' own tokenizer.json.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                               R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeek3[] = {
    R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr const char* kDeepSeekLetters =
    "\\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-"
    "\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-"
    "\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-"
    "\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-"
    "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-"
    "\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-"
    "\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-"
    "\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-"
    "\U0001e943"
    "]+";
constexpr const char* kDeepSeek[] = {
    R"([\r\n])", kDeepSeekLetters,
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", R"(\s+$)",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"};

Json Split(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json Sequence(Json steps) {
  steps.push_back(ByteLevel(false));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

Json Gpt2() { return ByteLevel(true); }
Json Llama3() { return Sequence(Json::array({Split(kLlama3)})); }
Json Qwen2() { return Sequence(Json::array({Split(kQwen2)})); }
Json Gpt4o() { return Sequence(Json::array({Split(kGpt4o)})); }
Json DeepSeek3() {
  Json steps = Json::array();
  for (const char* pattern : kDeepSeek3) steps.push_back(Split(pattern));
  return Sequence(std::move(steps));
}
Json DeepSeek() {
  Json steps = Json::array();
  for (const char* pattern : kDeepSeek) steps.push_back(Split(pattern));
  steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  return Sequence(std::move(steps));
}

struct Named {
  std::string_view name;
  Json (*steps)();
  bool nfc = false, ignore_merges = false, add_bos = false;
};

constexpr std::array<Named, 15> kNamed = {{
    {"gpt-2", Gpt2},
    {"olmo", Gpt2, /*nfc=*/true},
    {"llama3", Llama3, false, /*ignore_merges=*/true, /*add_bos=*/true},
    {"llama-v3", Llama3, false, true, true},
    {"llama-bpe", Llama3, false, true, true},
    {"smaug-bpe", Llama3},
    {"dbrx", Llama3},
    {"glm4", Llama3},
    {"chatglm-bpe", Llama3},
    {"qwen2", Qwen2, /*nfc=*/true},
    {"deepseek-r1-qwen", Qwen2, /*nfc=*/true},
    {"gpt-4o", Gpt4o},
    {"deepseek-llm", DeepSeek},
    {"deepseek-v3", DeepSeek3},
    {"hunyuan-dense", DeepSeek3},
}};

}  // namespace

std::optional<GgufPreTokenizer> FindGgufPreTokenizer(std::string_view name) {
  const auto found = std::ranges::find(kNamed, name, &Named::name);
  if (found == kNamed.end()) return std::nullopt;
  return GgufPreTokenizer{.pre_tokenizer = found->steps(),
                          .normalizer = found->nfc ? Json{{"type", "NFC"}} : Json(),
                          .ignore_merges = found->ignore_merges,
                          .add_bos = found->add_bos};
}

std::string GgufPreTokenizerNames() {
  std::vector<std::string> names;
  for (const Named& named : kNamed) names.emplace_back(named.name);
  return Joined(names, ", ");
}

// Keys: gguf-py/gguf/constants.py and src/llama-vocab.cpp of
// https://github.com/ggml-org/llama.cpp.

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
