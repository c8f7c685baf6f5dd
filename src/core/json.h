// nlohmann/json with its parser and serializer compiled once, in json.cc. Otherwise each object
// file that parses or prints would instantiate them: 2 to 4 s of compilation each.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace nlohmann::detail {
using SwitchyardCharacters = iterator_input_adapter<const char*>;
using SwitchyardString = iterator_input_adapter<std::string::const_iterator>;
extern template class lexer<json, SwitchyardCharacters>;
extern template class lexer<json, SwitchyardString>;
extern template class parser<json, SwitchyardCharacters>;
extern template class parser<json, SwitchyardString>;
extern template class serializer<json>;
extern template class serializer<ordered_json>;
extern template class json_sax_dom_parser<json>;
extern template class json_sax_dom_callback_parser<json>;
}  // namespace nlohmann::detail
