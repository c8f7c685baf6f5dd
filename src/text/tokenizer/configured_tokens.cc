#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/tokenizer/tokenizer_reader.h"
#include "text/tokenizer/vocabulary.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 7> kNamed = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

// A token's text, written as a string or as an AddedToken object; nullptr for others.
const std::string* TextOf(const Json& token) {
  if (token.is_string()) return token.get_ptr<const std::string*>();
  if (!token.is_object()) return nullptr;
  const auto content = token.find("content");
  return content == token.end() ? nullptr : content->get_ptr<const std::string*>();
}

const Json& Member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

// An entry of added_tokens, without its id.
Json EntryOf(const Json& token, bool special) {
  Json entry = {{"content", *TextOf(token)}};
  for (const char* key : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
    const Json& option = Member(token, key);
    if (option.is_boolean()) entry[key] = option;
  }
  if (!entry.contains("special")) entry["special"] = special;
  if (!entry.contains("normalized")) entry["normalized"] = !entry["special"].get<bool>();
  return entry;
}

// The added_tokens of the tokenizer.json that is being completed.
class TokenList {
 public:
  explicit TokenList(Json* tokenizer) : tokenizer_(*tokenizer), list_(tokenizer_["added_tokens"]) {
    if (list_.is_null()) list_ = Json::array();
    if (!list_.is_array()) return;  // reported later by the reader of tokenizer.json
    for (size_t i = 0; i < list_.size(); ++i) {
      if (const std::string* text = TextOf(list_[i])) index_.emplace(*text, i);
      Occupy(Member(list_[i], "id"));
    }
    const Json& vocab = Member(Member(tokenizer_, "model"), "vocab");
    if (vocab.is_object()) {
      for (const auto& [text, id] : vocab.items()) Occupy(id);
    } else if (vocab.is_array()) {
      for (size_t i = 0; i < vocab.size(); ++i) {
        Occupy(i);
        if (vocab[i].is_array() && !vocab[i].empty() && vocab[i][0].is_string())
          listed_.emplace(vocab[i][0].get<std::string>(), static_cast<int32_t>(i));
      }
    }
  }

  bool Has(const std::string& text) const { return index_.contains(text); }

  // `declared`: the id that the configuration gives the token; negative: none.
  void Add(Json entry, int32_t declared) {
    const std::string text = entry["content"];
    if (text.empty() || !list_.is_array()) return;
    if (const auto there = index_.find(text); there != index_.end()) {
      entry["id"] = list_[there->second]["id"];
      list_[there->second] = std::move(entry);
      return;
    }
    const std::optional<int32_t> in_model = InModel(text);
    const bool free = declared >= 0 && !taken_.contains(declared);
    const int32_t id = in_model ? *in_model : free ? declared : next_;
    entry["id"] = id;
    Occupy(id);
    index_.emplace(text, list_.size());
    list_.push_back(std::move(entry));
  }

  // Marks a named token as special, whatever it was before.
  void MakeSpecial(const Json& token) {
    const std::string& text = *TextOf(token);
    const auto there = index_.find(text);
    if (there != index_.end()) {
      list_[there->second]["special"] = true;
    } else {
      Json entry = EntryOf(token, true);
      entry["special"] = true;
      Add(std::move(entry), -1);
    }
  }

  std::optional<int32_t> IdOf(const std::string& text) const {
    const auto there = index_.find(text);
    if (there == index_.end()) return InModel(text);
    const Json& id = list_[there->second]["id"];
    return id.is_number_integer() ? std::optional(id.get<int32_t>()) : std::nullopt;
  }

 private:
  std::optional<int32_t> InModel(const std::string& text) const {
    const Json& vocab = Member(Member(tokenizer_, "model"), "vocab");
    if (vocab.is_array()) {
      const auto found = listed_.find(text);
      return found == listed_.end() ? std::nullopt : std::optional(found->second);
    }
    const Json& id = Member(vocab, text.c_str());
    return id.is_number_integer() ? std::optional(id.get<int32_t>()) : std::nullopt;
  }

  void Occupy(const Json& id) {
    if (!id.is_number_integer()) return;
    const auto number = id.get<int64_t>();
    if (number < 0 || number > kMaxTokenId) return;
    taken_.emplace(static_cast<int32_t>(number), true);
    next_ = std::max(next_, static_cast<int32_t>(number) + 1);
  }

  Json& tokenizer_;
  Json& list_;
  std::unordered_map<std::string, size_t> index_;    // text -> index in list_
  std::unordered_map<std::string, int32_t> listed_;  // text -> id, in a Unigram vocabulary
  std::unordered_map<int32_t, bool> taken_;
  int32_t next_ = 0;
};

void AddDecoderTokens(const TokenizerConfig& files, const Json& decoder, TokenList* list) {
  std::map<int32_t, Json> by_id;
  for (const auto& [key, token] : decoder.items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool valid = error == std::errc() && end == key.data() + key.size() && id >= 0 &&
                       id <= kMaxTokenId && TextOf(token);
    if (!valid) {
      throw Invalid(
          "{}/tokenizer_config.json: added_tokens_decoder['{}'] is not a token with a valid id",
          files.directory, key);
    }
    by_id.emplace(id, EntryOf(token, false));
  }
  for (auto& [id, entry] : by_id) list->Add(std::move(entry), id);
}

std::vector<Json> ExtraTokens(const Json& config) {
  std::vector<Json> tokens;
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    const Json& extra = Member(config, key);
    if (!extra.is_array() && !extra.is_object()) continue;
    for (const auto& [name, token] : extra.items()) {
      if (TextOf(token)) tokens.push_back(token);
    }
    if (!tokens.empty()) break;
  }
  return tokens;
}

// Adds the tokens of added_tokens.json, a map from text to id. Tokens that `config` names
// (bos_token …) or lists as additional special tokens are special.
void AddOldTokens(const TokenizerConfig& files, const Json& config, TokenList* list) {
  if (files.added_tokens.is_null()) return;
  std::map<int32_t, std::string> by_id;
  for (const auto& [text, id] : files.added_tokens.items()) {
    const bool valid = id.is_number_integer() && id >= 0 && id <= kMaxTokenId;
    if (!valid) throw Invalid("{}/added_tokens.json: '{}' has no valid id", files.directory, text);
    by_id.emplace(id.get<int32_t>(), text);
  }
  std::unordered_set<std::string> special;
  for (const char* name : kNamed) {
    if (const std::string* text = TextOf(Member(config, name))) special.insert(*text);
  }
  for (const Json& token : ExtraTokens(config)) special.insert(*TextOf(token));
  for (const auto& [id, text] : by_id) {
    if (!list->Has(text)) list->Add(EntryOf(text, special.contains(text)), id);
  }
}

void AddNamedTokens(const Json& config, TokenList* list) {
  for (const char* name : kNamed) {
    const Json& token = Member(config, name);
    if (TextOf(token)) list->MakeSpecial(token);
  }
  if (config.is_object()) {
    for (const auto& [name, token] : config.items()) {
      const bool known = std::find(kNamed.begin(), kNamed.end(), name) != kNamed.end();
      if (!known && name.ends_with("_token") && TextOf(token)) list->MakeSpecial(token);
    }
  }
  for (const Json& token : ExtraTokens(config)) {
    if (!list->Has(*TextOf(token))) list->Add(EntryOf(token, true), -1);
  }
}

// True for tokenizer classes of transformers that replace the post-processor of the file.
bool ReplacesPostProcessor(const Json& config) {
  const Json& name = Member(config, "tokenizer_class");
  if (!name.is_string()) return false;
  const auto text = name.get<std::string>();
  for (const char* family :
       {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"}) {
    if (text == family || text == std::string(family) + "Fast") return true;
  }
  return false;
}

bool MentionsTemplate(const Json& processor) {
  const Json& type = Member(processor, "type");
  if (type == "Sequence") {
    const Json& steps = Member(processor, "processors");
    return steps.is_array() && std::any_of(steps.begin(), steps.end(), MentionsTemplate);
  }
  return processor.is_object() && type != "ByteLevel";
}

void ApplyAddTokens(const TokenizerConfig& files, const Json& config, const TokenList& list,
                    Json* tokenizer) {
  const Json& bos = Member(config, "add_bos_token");
  const Json& eos = Member(config, "add_eos_token");
  const bool before = bos.is_boolean() && bos.get<bool>() && TextOf(Member(config, "bos_token"));
  const bool after = eos.is_boolean() && eos.get<bool>() && TextOf(Member(config, "eos_token"));
  const bool said = bos.is_boolean() || eos.is_boolean();
  Json& processor = (*tokenizer)["post_processor"];
  const bool replaces = said && ReplacesPostProcessor(config);
  if (!replaces && (!(before || after) || MentionsTemplate(processor))) return;
  Json single = Json::array(), special = Json::object();
  const auto put = [&](const char* name) {
    const std::string& text = *TextOf(Member(config, name));
    const std::optional<int32_t> id = list.IdOf(text);
    if (!id)
      throw Invalid("{}: {} '{}' is not a token of the vocabulary", files.directory, name, text);
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    special[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
  };
  if (before) put("bos_token");
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (after) put("eos_token");
  processor = {{"type", "TemplateProcessing"},
               {"single", std::move(single)},
               {"special_tokens", std::move(special)}};
}

}  // namespace

void ApplyTokenizerConfig(const TokenizerConfig& files, Json* tokenizer) {
  if (!tokenizer->is_object()) return;  // reported later by the reader of tokenizer.json
  TokenList list(tokenizer);
  Json config = files.config.is_object() ? files.config : Json::object();
  const Json& decoder = Member(config, "added_tokens_decoder");
  if (decoder.is_object()) {
    AddDecoderTokens(files, decoder, &list);
  } else {
    if (files.special_tokens_map.is_object()) config.update(files.special_tokens_map);
    AddOldTokens(files, config, &list);
  }
  AddNamedTokens(config, &list);
  ApplyAddTokens(files, config, list, tokenizer);
}

}  // namespace switchyard
