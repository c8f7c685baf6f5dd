// Reads tokenizer files.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace switchyard {

// Throws Error kNotFound, or kInvalid if the file exceeds the size limit.
std::string ReadTokenizerFile(const std::filesystem::path& path);

// Throws Error kInvalid that names `name_for_errors`.
nlohmann::json ParseTokenizerJson(std::string_view json, std::string_view name_for_errors);

}  // namespace switchyard
