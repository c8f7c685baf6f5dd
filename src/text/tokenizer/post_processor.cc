#include "text/tokenizer/post_processor.h"

#include <string>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr size_t kMaxAddedIds = 1024;  // ids added before the text, and after the text

struct Sides {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

int32_t ReadId(const JsonNode& id, int vocab_size) {
  return static_cast<int32_t>(id.Integer(0, vocab_size - 1));
}

Sides ReadTemplate(const JsonNode& node, int vocab_size) {
  Sides sides;
  int sequences = 0;
  for (const JsonNode& piece : node["single"].Items()) {
    const JsonNode sequence = piece["Sequence"];
    if (!sequence.is_null()) {
      ++sequences;
      if (sequence["id"].String() != "A") throw Invalid("{}: want sequence A", sequence.where());
      continue;
    }
    const JsonNode token = node["special_tokens"][piece["SpecialToken"]["id"].String()];
    auto& side = sequences == 0 ? sides.before : sides.after;
    for (const JsonNode& id : token["ids"].Items()) side.push_back(ReadId(id, vocab_size));
    if (side.size() > kMaxAddedIds) {
      throw Invalid("{}: adds more than {} ids to every text", node["single"].where(),
                    kMaxAddedIds);
    }
  }
  if (sequences != 1)
    throw Invalid("{}: want sequence A once, got it {} times", node["single"].where(), sequences);
  return sides;
}

// BERT's and RoBERTa's classifier and separator, each [token, id].
Sides ReadClassifierAndSeparator(const JsonNode& node, int vocab_size) {
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
  Sides sides;
  if (type == "TemplateProcessing") {
    sides = ReadTemplate(node, vocab_size);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    sides = ReadClassifierAndSeparator(node, vocab_size);
  } else {
    throw Invalid("{}: post_processor type '{}' is not supported", node.where(), type);
  }
  if (std::exchange(adds_tokens_, true)) {
    throw Invalid("{}: a second post_processor that adds tokens is not supported", node.where());
  }
  before_ = std::move(sides.before);
  after_ = std::move(sides.after);
}

}  // namespace switchyard
