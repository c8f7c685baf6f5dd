#include "server/args/tokenizer_args.h"

#include <CLI/CLI.hpp>

#include "server/args/parse_words.h"

namespace switchyard {

std::optional<TrainTokenizerArgs> ParseTrainTokenizer(const std::vector<std::string>& args) {
  TrainTokenizerArgs a;
  CLI::App app(
      "Learn a byte-level BPE tokenizer from text: tokenizer.json and tokenizer_config.json, which "
      "Hugging Face's tokenizers load",
      "switchyard train-tokenizer");
  app.add_option("INPUT", a.inputs,
                 "Text files, .jsonl files ({\"text\": …} or {\"messages\": […]} in each line), or "
                 "directories of them")
      ->required();
  app.add_option("--output", a.output, "Directory of the two files; made where it is missing")
      ->required();
  app.add_option("--vocab-size", a.vocab_size,
                 "Tokens in all, special ones and the 256 bytes included; fewer where the text has "
                 "no more pairs that are frequent enough")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--min-frequency", a.min_frequency, "A pair seen less often is not merged")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--max-token-bytes", a.max_token_bytes, "Longer tokens are not made")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--special-tokens", a.special_tokens, "They get the first ids, in this order")
      ->capture_default_str();
  app.add_option("--bos", a.bos, "Special token before every text; default: none");
  app.add_option("--eos", a.eos, "Special token that ends texts and answers")
      ->capture_default_str();
  app.add_option("--pad", a.pad, "Special token that fills up batches")->capture_default_str();
  app.add_option(
      "--chat-template", a.chat_template,
      "Jinja file; default: ChatML, where <|im_start|> and <|im_end|> are special tokens");
  app.add_option("--pattern", a.pattern,
                 "Regular expression (Oniguruma) whose matches are the words that merges stay "
                 "within; default: words with the space before them, single digits, other runs");
  app.add_option("--model-max-length", a.max_length, "Stated in tokenizer_config.json; 0: not")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

}  // namespace switchyard
