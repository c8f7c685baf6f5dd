// The command line of `switchyard train-tokenizer`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard {

struct TrainTokenizerArgs {
  std::vector<std::string> inputs;  // arguments FILE or DIR, one or more
  std::string output;               // --output DIR
  int vocab_size = 8192;            // --vocab-size
  int64_t min_frequency = 2;        // --min-frequency
  int max_token_bytes = 32;         // --max-token-bytes
  // --special-tokens, which get the first ids in this order
  std::vector<std::string> special_tokens{"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::string bos;                    // --bos
  std::string eos = "<|im_end|>";     // --eos
  std::string pad = "<|endoftext|>";  // --pad
  std::string chat_template;          // --chat-template FILE; empty: ChatML
  std::string pattern;                // --pattern; empty: the default
  int64_t max_length = 0;             // --model-max-length
};

// Returns nothing after printing the help for --help. Throws kInvalid that names the flag.
std::optional<TrainTokenizerArgs> ParseTrainTokenizer(const std::vector<std::string>& args);

}  // namespace switchyard
