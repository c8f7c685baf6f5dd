// Tokenizer::FromDirectory: selects the tokenizer files of a checkpoint.
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_reader.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kVocabularies[] = {"tokenizer.json", "tiktoken.model", "tokenizer.model"};

Json ReadObjectIfThere(const fs::path& file) {
  if (!fs::exists(file)) return nullptr;
  Json json = ParseTokenizerJson(ReadTokenizerFile(file), file.string());
  if (!json.is_object()) throw Invalid("{} is not a JSON object", file.string());
  return json;
}

bool IsFalse(const Json& config, const char* key) {
  return config.is_object() && config.contains(key) && config[key] == false;
}

// Gives pieces the names of their ids in added_tokens_decoder, unless another piece has the same
// name. Fine-tuned models rename unused pieces in this way.
void RenamePieces(const Json& decoder, SentencePieceModel* model) {
  if (!decoder.is_object()) return;
  std::vector<std::optional<std::string>> names(model->pieces.size());
  for (const auto& [key, token] : decoder.items()) {
    size_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool valid = error == std::errc() && end == key.data() + key.size() && id < names.size();
    if (valid && token.is_object() && token.contains("content") && token["content"].is_string())
      names[id] = token["content"].get<std::string>();
  }
  std::unordered_set<std::string> kept;
  for (size_t id = 0; id < names.size(); ++id) {
    if (!names[id]) kept.insert(model->pieces[id].text);
  }
  for (size_t id = 0; id < names.size(); ++id) {
    if (names[id] && !kept.contains(*names[id])) model->pieces[id].text = *names[id];
  }
}

// If tokenizer_config.json omits bos_token, eos_token or unk_token, adds that of the SentencePiece
// model. If the model adds a dummy prefix, added tokens are matched in the raw text, as in
// transformers. So the model adds the prefix to each part of the text between two added tokens.
void CompleteConfig(const SentencePieceModel& model, Json* config) {
  if (config->is_null()) *config = Json::object();
  const auto take = [&](const char* name, int32_t id, const std::string& piece) {
    if (id >= 0 && !config->contains(name)) (*config)[name] = piece;
  };
  take("bos_token", model.bos_id, model.bos_piece);
  take("eos_token", model.eos_id, model.eos_piece);
  take("unk_token", model.unk_id, model.unk_piece);
  const auto decoder = config->find("added_tokens_decoder");
  if (!model.add_dummy_prefix || decoder == config->end() || !decoder->is_object()) return;
  for (Json& token : *decoder) {
    if (token.is_object()) token["normalized"] = false;
  }
}

// The ids of bos_token, eos_token and pad_token, by these names. ApplyTokenizerConfig makes the
// tokens special.
std::map<std::string, int32_t, std::less<>> NamedTokens(const TokenizerConfig& files,
                                                        const Tokenizer& tokenizer) {
  Json config = files.config.is_object() ? files.config : Json::object();
  const bool older =
      !config.contains("added_tokens_decoder") || !config["added_tokens_decoder"].is_object();
  if (older && files.special_tokens_map.is_object()) config.update(files.special_tokens_map);
  std::map<std::string, int32_t, std::less<>> named;
  for (const char* name : {"bos_token", "eos_token", "pad_token"}) {
    const Json token = config.value(name, Json());
    const Json text = token.is_object() ? token.value("content", Json()) : token;
    if (!text.is_string()) continue;
    if (const auto id = tokenizer.TokenToId(text.get<std::string>())) named.emplace(name, *id);
  }
  return named;
}

// Converts the vocabulary to the form of tokenizer.json.
Json ReadVocabulary(const fs::path& file, Json* config) {
  const std::string bytes = ReadTokenizerFile(file);
  if (file.extension() == ".json") return ParseTokenizerJson(bytes, file.string());
  const bool kimi = file.filename() == "tiktoken.model";
  const Json decoder = config->is_object() ? config->value("added_tokens_decoder", Json()) : Json();
  if (kimi || LooksLikeTiktoken(bytes)) {
    return TokenizerOfTiktoken(bytes, kimi ? TiktokenPattern::kKimi : TiktokenPattern::kLlama3,
                               decoder, file.string());
  }
  SentencePieceModel model = ReadSentencePiece(bytes, file.string());
  RenamePieces(decoder, &model);
  CompleteConfig(model, config);
  return TokenizerOfSentencePiece(model, !IsFalse(*config, "legacy"), file.string());
}

}  // namespace

bool Tokenizer::HasFiles(const fs::path& dir) {
  if (const auto gguf = FindGguf(dir)) return HasGgufTokenizer(GgufFiles(*gguf));
  for (const char* name : kVocabularies) {
    if (fs::exists(dir / name)) return true;
  }
  return false;
}

std::unique_ptr<Tokenizer> Tokenizer::FromDirectory(const fs::path& dir) {
  if (const auto file = FindGguf(dir)) {
    const GgufFiles gguf(*file);
    const TokenizerConfig config{.config = TokenizerConfigOfGguf(gguf), .directory = gguf.name()};
    Json document = TokenizerOfGguf(gguf);
    ApplyTokenizerConfig(config, &document);
    std::unique_ptr<Tokenizer> tokenizer = FromDocument(document, gguf.name());
    tokenizer->named_ = NamedTokens(config, *tokenizer);
    return tokenizer;
  }
  TokenizerConfig files{.config = ReadObjectIfThere(dir / "tokenizer_config.json"),
                        .special_tokens_map = ReadObjectIfThere(dir / "special_tokens_map.json"),
                        .added_tokens = ReadObjectIfThere(dir / "added_tokens.json"),
                        .directory = dir.string()};
  for (const char* name : kVocabularies) {
    if (!fs::exists(dir / name)) continue;
    Json document = ReadVocabulary(dir / name, &files.config);
    ApplyTokenizerConfig(files, &document);
    std::unique_ptr<Tokenizer> tokenizer = FromDocument(document, (dir / name).string());
    tokenizer->named_ = NamedTokens(files, *tokenizer);
    return tokenizer;
  }
  throw NotFound("{}: has no tokenizer.json, tiktoken.model or tokenizer.model", dir.string());
}

}  // namespace switchyard
