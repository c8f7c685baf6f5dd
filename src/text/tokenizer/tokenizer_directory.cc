// Tokenizer::FromDirectory: the files that a checkpoint may have its tokenizer in.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "text/tokenizer/configured_tokens.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"
#include "text/tokenizer/tiktoken_file.h"
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
  if (!json.is_object()) throw Invalid("{} is no JSON object", file.string());
  return json;
}

bool IsFalse(const Json& config, const char* key) {
  return config.is_object() && config.contains(key) && config[key] == false;
}

// The vocabulary in the form of tokenizer.json.
Json ReadVocabulary(const fs::path& file, const Json& config) {
  const std::string bytes = ReadTokenizerFile(file);
  if (file.extension() == ".json") return ParseTokenizerJson(bytes, file.string());
  const bool tiktoken = file.filename() == "tiktoken.model" || LooksLikeTiktoken(bytes);
  if (!tiktoken) {
    return TokenizerOfSentencePiece(ReadSentencePiece(bytes, file.string()),
                                    !IsFalse(config, "legacy"), file.string());
  }
  const bool kimi = file.filename() == "tiktoken.model";
  const Json decoder = config.is_object() ? config.value("added_tokens_decoder", Json()) : Json();
  return TokenizerOfTiktoken(bytes, kimi ? TiktokenPattern::kKimi : TiktokenPattern::kLlama3,
                             decoder, file.string());
}

// The names that tokenizer_config.json need not give where the model of SentencePiece does.
void TakeNames(const fs::path& file, Json* config) {
  const std::string bytes = ReadTokenizerFile(file);
  if (file.filename() != "tokenizer.model" || LooksLikeTiktoken(bytes)) return;
  const SentencePieceModel model = ReadSentencePiece(bytes, file.string());
  if (config->is_null()) *config = Json::object();
  const auto take = [&](const char* name, int32_t id, const std::string& piece) {
    if (id >= 0 && !config->contains(name)) (*config)[name] = piece;
  };
  take("bos_token", model.bos_id, model.bos_piece);
  take("eos_token", model.eos_id, model.eos_piece);
  take("unk_token", model.unk_id, model.unk_piece);
}

}  // namespace

bool Tokenizer::HasFiles(const fs::path& dir) {
  for (const char* name : kVocabularies) {
    if (fs::exists(dir / name)) return true;
  }
  return false;
}

std::unique_ptr<Tokenizer> Tokenizer::FromDirectory(const fs::path& dir) {
  TokenizerConfig files{.config = ReadObjectIfThere(dir / "tokenizer_config.json"),
                        .special_tokens_map = ReadObjectIfThere(dir / "special_tokens_map.json"),
                        .added_tokens = ReadObjectIfThere(dir / "added_tokens.json"),
                        .directory = dir.string()};
  for (const char* name : kVocabularies) {
    if (!fs::exists(dir / name)) continue;
    Json document = ReadVocabulary(dir / name, files.config);
    if (name == kVocabularies[2]) TakeNames(dir / name, &files.config);
    ApplyTokenizerConfig(files, &document);
    return FromDocument(document, (dir / name).string());
  }
  throw NotFound("{}: has no tokenizer.json, tiktoken.model or tokenizer.model", dir.string());
}

}  // namespace switchyard
