#include "bench/serve/drafts.h"

#include <nlohmann/json.hpp>

namespace switchyard::bench {

DraftFigures DraftsOf(std::string_view server_info) {
  const auto info = nlohmann::json::parse(server_info, nullptr, /*allow_exceptions=*/false);
  DraftFigures all;
  if (!info.is_object() || !info.contains("internal_states")) return all;
  for (const auto& state : info["internal_states"]) {
    const auto count = [&](const char* name) {
      const auto found = state.find(name);
      return found != state.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
    };
    all.steps += count("verify_steps");
    all.drafted += count("draft_tokens");
    all.accepted += count("accepted_draft_tokens");
  }
  return all;
}

}  // namespace switchyard::bench
