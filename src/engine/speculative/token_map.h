// The tokens that a draft model's head computes (--speculative-token-map).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace switchyard {

// Reads the token ids of a file and sorts them, so that ties of logits and samples select the same
// token as with the whole vocabulary. The file is a JSON list, a safetensors file with one tensor
// of integers [tokens], or text with ids between white space. Throws Error that names
// --speculative-token-map and the file: kNotFound if it cannot be opened; kInvalid for PyTorch
// files, other contents, no ids, ids outside [0, vocab_size), and ids that occur twice.
std::vector<int32_t> ReadTokenMap(const std::filesystem::path& path, int64_t vocab_size);

// Writes token ids in their order: a JSON list if the name ends with .json, else text with one id
// in each line. Throws Error: kInvalid for names of other formats, and those of OutputFile.
void WriteTokenMap(const std::filesystem::path& path, std::span<const int32_t> tokens);

// A number that differs, except by chance, if the tokens differ.
uint64_t HashOfTokens(std::span<const int32_t> tokens);

}  // namespace switchyard
