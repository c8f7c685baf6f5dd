#include "text/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include "core/error.h"

namespace switchyard {
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
