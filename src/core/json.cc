#include "core/json.h"

namespace nlohmann::detail {

template class lexer<json, SwitchyardCharacters>;
template class lexer<json, SwitchyardString>;
template class parser<json, SwitchyardCharacters>;
template class parser<json, SwitchyardString>;
template class serializer<json>;
template class serializer<ordered_json>;
template class json_sax_dom_parser<json>;
template class json_sax_dom_callback_parser<json>;

}  // namespace nlohmann::detail
