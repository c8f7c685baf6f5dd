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
  app.Option("--output", a.output, "Output directory; created if missing").Required();
  app.Option("--vocab-size", a.vocab_size,
             "Total number of tokens, including special tokens and the 256 bytes. Fewer if no more "
             "pairs reach --min-frequency")
      .ShowDefault()
      .Positive();
  app.Option("--min-frequency", a.min_frequency, "Minimum frequency of a pair that is merged")
      .ShowDefault()
      .Positive();
  app.Option("--max-token-bytes", a.max_token_bytes, "Maximum length of a token in bytes")
      .ShowDefault()
      .Positive();
  app.Option("--special-tokens", a.special_tokens,
             "Special tokens; they get the first ids in this order")
      .ShowDefault();
  app.Option("--bos", a.bos, "Special token at the start of each text; default: none");
  app.Option("--eos", a.eos, "Special token at the end of texts and answers").ShowDefault();
  app.Option("--pad", a.pad, "Special token for padding").ShowDefault();
  app.Option("--chat-template", a.chat_template,
             "Jinja file; default: ChatML, where <|im_start|> and <|im_end|> are special tokens");
  app.Option("--pattern", a.pattern,
             "Regular expression (Oniguruma) of the words within which pairs are merged; default: "
             "words with a leading space, single digits, other runs");
  app.Option("--model-max-length", a.max_length,
             "Value of model_max_length in tokenizer_config.json; 0: absent")
      .ShowDefault()
      .NonNegative();
  if (!ParseWords(app, args)) return std::nullopt;
  return a;
}

}  // namespace switchyard
