// Shared by the tokenizer's tests: the files under tests/data, and a small tokenizer to modify.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace switchyard {

inline std::filesystem::path TestData() { return SWITCHYARD_TEST_DATA; }

inline nlohmann::json ReadJson(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

inline std::filesystem::path FixtureTokenizer(const std::string& name) {
  return TestData() / "fixtures" / name / "tokenizer.json";
}

inline std::unique_ptr<Tokenizer> FromJsonValue(const nlohmann::json& json) {
  return Tokenizer::FromJson(json.dump(), "tokenizer.json");
}

// A tokenizer with the merges ab and abc (of ab and c), the special token <s> (3), byte tokens for
// 0xC3 and 0xA9, no pre-tokenizer, no decoder.
inline nlohmann::json SmallTokenizer() {
  return nlohmann::json::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 3, "content": "<s>", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Fuse"},
    "model": {
      "type": "BPE", "unk_token": "?", "fuse_unk": false, "byte_fallback": true,
      "vocab": {"a": 0, "b": 1, "c": 2, "ab": 4, "abc": 5, "?": 6, "<0xC3>": 7, "<0xA9>": 8,
                "<": 9, "s": 10, ">": 11, "abab": 12, " ": 13},
      "merges": ["a b", ["ab", "c"]]}})");
}

}  // namespace switchyard
