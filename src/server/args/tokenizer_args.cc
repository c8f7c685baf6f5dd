#include "server/args/tokenizer_args.h"

#include "core/command_line.h"
#include "server/args/parse_words.h"

namespace switchyard {

std::optional<TrainTokenizerArgs> ParseTrainTokenizer(const std::vector<std::string>& args) {
  TrainTokenizerArgs a;
  CommandLine app(
      "Learn a byte-level BPE tokenizer from text: tokenizer.json and tokenizer_config.json, which "
      "Hugging Face's tokenizers load",
      "switchyard train-tokenizer");
  app.Option("INPUT", a.inputs,
             "Text files, .jsonl files ({\"text\": …} or {\"messages\": […]} in each line), or "
             "directories of them")
      .Required();
  app.Option("--output", a.output, "Directory of the two files; made where it is missing")
      .Required();
  app.Option("--vocab-size", a.vocab_size,
             "Tokens in all, special ones and the 256 bytes included; fewer where the text has "
             "no more pairs that are frequent enough")
      .ShowDefault()
      .Positive();
  app.Option("--min-frequency", a.min_frequency, "A pair seen less often is not merged")
      .ShowDefault()
      .Positive();
  app.Option("--max-token-bytes", a.max_token_bytes, "Longer tokens are not made")
      .ShowDefault()
      .Positive();
  app.Option("--special-tokens", a.special_tokens, "They get the first ids, in this order")
      .ShowDefault();
  app.Option("--bos", a.bos, "Special token before every text; default: none");
  app.Option("--eos", a.eos, "Special token that ends texts and answers").ShowDefault();
  app.Option("--pad", a.pad, "Special token that fills up batches").ShowDefault();
  app.Option("--chat-template", a.chat_template,
             "Jinja file; default: ChatML, where <|im_start|> and <|im_end|> are special tokens");
  app.Option("--pattern", a.pattern,
             "Regular expression (Oniguruma) whose matches are the words that merges stay "
             "within; default: words with the space before them, single digits, other runs");
  app.Option("--model-max-length", a.max_length, "Stated in tokenizer_config.json; 0: not")
      .ShowDefault()
      .NonNegative();
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

}  // namespace switchyard
