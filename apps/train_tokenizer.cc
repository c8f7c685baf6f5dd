// `switchyard train-tokenizer`: trains tokenizer.json on text.
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "apps/commands.h"
#include "core/error.h"
#include "text/tokenizer/bpe_trainer.h"
#include "train/data/encode.h"

namespace switchyard {
namespace {

std::string ChatTemplateOf(const TrainTokenizerArgs& args) {
  if (args.chat_template.empty()) {
    const auto has = [&](const char* token) {
      return std::ranges::count(args.special_tokens, token) > 0;
    };
    return has("<|im_start|>") && has("<|im_end|>") ? kDefaultChatTemplate : "";
  }
  std::ifstream in(args.chat_template);
  if (!in) throw NotFound("--chat-template {}: cannot be read", args.chat_template);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

int RunTrainTokenizer(const TrainTokenizerArgs& args) {
  const TokenizerFileOptions files{.pattern = args.pattern.empty() ? kWordPattern : args.pattern,
                                   .bos = args.bos,
                                   .eos = args.eos,
                                   .pad = args.pad,
                                   .chat_template = ChatTemplateOf(args),
                                   .max_length = args.max_length};
  BpeTrainer trainer(ByteLevelPreTokenizer(files.pattern));
  size_t bytes = 0;
  const auto add = [&](const std::string& text) {
    trainer.Add(text);
    bytes += text.size();
  };
  const auto documents = train::ReadDocuments({args.inputs.begin(), args.inputs.end()});
  for (const train::Document& document : documents) {
    add(document.text);
    if (document.messages.is_null()) continue;
    for (const auto& message : document.messages) {
      // Missing or null if the message has tool calls only.
      const auto content = message.find("content");
      if (content != message.end() && content->is_string()) add(content->get<std::string>());
    }
  }
  const LearnedBpe bpe = trainer.Learn({.vocab_size = args.vocab_size,
                                        .min_frequency = args.min_frequency,
                                        .max_token_bytes = args.max_token_bytes,
                                        .special_tokens = args.special_tokens});
  WriteTokenizer(args.output, bpe, args.special_tokens, files);
  fmt::print("{}: {} tokens from {} documents of {} bytes{}\n", args.output, bpe.tokens.size(),
             documents.size(), bytes,
             static_cast<int>(bpe.tokens.size()) < args.vocab_size
                 ? "; no other pair of the text is frequent enough"
                 : "");
  return 0;
}

}  // namespace switchyard
