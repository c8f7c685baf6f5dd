#include "text/tokenizer/tokenizer_parts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr size_t kMaxAddedIds = 1024;  // ids added before the text, and after the text

struct AddedIds {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

int32_t ReadId(const JsonNode& id, int vocab_size) {
  return static_cast<int32_t>(id.Integer(0, vocab_size - 1));
}

AddedIds ReadTemplate(const JsonNode& node, int vocab_size) {
  AddedIds added;
  int sequences = 0;
  for (const JsonNode& piece : node["single"].Items()) {
    const JsonNode sequence = piece["Sequence"];
    if (!sequence.is_null()) {
      ++sequences;
      if (sequence["id"].String() != "A") throw Invalid("{}: want sequence A", sequence.where());
      continue;
    }
    const JsonNode token = node["special_tokens"][piece["SpecialToken"]["id"].String()];
    auto& ids = sequences == 0 ? added.before : added.after;
    for (const JsonNode& id : token["ids"].Items()) ids.push_back(ReadId(id, vocab_size));
    if (ids.size() > kMaxAddedIds) {
      throw Invalid("{}: adds more than {} ids to every text", node["single"].where(),
                    kMaxAddedIds);
    }
  }
  if (sequences != 1)
    throw Invalid("{}: want sequence A once, got it {} times", node["single"].where(), sequences);
  return added;
}

// BERT's and RoBERTa's classifier and separator, each [token, id].
AddedIds ReadClassifierAndSeparator(const JsonNode& node, int vocab_size) {
  const auto read = [&](std::string_view key) {
    const std::vector<JsonNode> pair = node[key].Items();
    if (pair.size() != 2) throw Invalid("{}: want [token, id]", node[key].where());
    return std::vector<int32_t>{ReadId(pair[1], vocab_size)};
  };
  return {read("cls"), read("sep")};
}

}  // namespace

PostProcessor::PostProcessor(const JsonNode& node, int vocab_size) { Read(node, vocab_size, 0); }

std::vector<int32_t> PostProcessor::AddSpecialTokens(std::vector<int32_t> ids) const {
  ids.insert(ids.begin(), before_.begin(), before_.end());
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

void PostProcessor::Read(const JsonNode& node, int vocab_size, int depth) {
  if (node.is_null()) return;
  if (depth > kMaxComponentDepth)
    throw Invalid("{}: components nest deeper than {}", node.where(), kMaxComponentDepth);
  const std::string type = node["type"].String();
  if (type == "ByteLevel") return;  // it affects only offsets
  if (type == "Sequence") {
    for (const JsonNode& item : node["processors"].Components()) {
      Read(item, vocab_size, depth + 1);
    }
    return;
  }
  AddedIds added;
  if (type == "TemplateProcessing") {
    added = ReadTemplate(node, vocab_size);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    added = ReadClassifierAndSeparator(node, vocab_size);
  } else {
    throw Invalid("{}: post_processor type '{}' is not supported", node.where(), type);
  }
  if (std::exchange(adds_tokens_, true)) {
    throw Invalid("{}: a second post_processor that adds tokens is not supported", node.where());
  }
  before_ = std::move(added.before);
  after_ = std::move(added.after);
}

TokenizerParts::TokenizerParts(const JsonNode& root)
    : normalizer(MakeNormalizer(root["normalizer"])),
      pre_tokenizer(MakePreTokenizer(root["pre_tokenizer"])),
      model(root["model"]),
      added(root["added_tokens"], model.vocabulary(), normalizer.get()),
      vocab_size(std::max(model.vocabulary().size(), added.vocabulary().size())),
      post_processor(root["post_processor"], vocab_size),
      decoder(root["decoder"]) {}

void TokenizerParts::Push(std::span<const int32_t> ids, bool skip_special_tokens,
                          DecodeStream* stream) const {
  for (const int32_t id : ids) {
    if (const AddedToken* token = added.Find(id)) {
      if (!skip_special_tokens || !token->special) stream->Push(token->normalized_content);
    } else if (const std::string* text = model.vocabulary().Text(id)) {
      stream->Push(*text);
    }
  }
}

}  // namespace switchyard
