#include "server/api/bootstrap_fields.h"

#include <algorithm>
#include <limits>

#include "server/api/request_error.h"
#include "server/api/sampling_fields.h"

namespace switchyard {
std::optional<KvRoom> ParseBootstrap(const ServerArgs& args, const Fields& f, size_t i,
                                     size_t prompts) {
  Json own = Json::object();
  for (const char* key : {"bootstrap_room", "bootstrap_host", "bootstrap_port"}) {
    const Json* value = ValueForPrompt(f, key, i, prompts);
    if (!value || value->is_null()) continue;
    if (!args.engine.disaggregated())
      throw InvalidField(f.Name(key),
                         "{} is not supported: this server has no --disaggregation-mode",
                         f.Name(key));
    own[key] = *value;
  }
  const Fields fields(own);
  if (!fields.Has("bootstrap_room")) return std::nullopt;
  KvRoom room;
  room.key.room = static_cast<uint64_t>(
      fields.Int("bootstrap_room", 0, 0, std::numeric_limits<int64_t>::max()));
  // Prompts of one HTTP request may have a common room.
  room.key.index = static_cast<int32_t>(i);
  room.host = fields.String("bootstrap_host", "");
  room.port =
      static_cast<int>(fields.Int("bootstrap_port", std::max(args.bootstrap_port, 1), 1, 65535));
  if (args.engine.disaggregation_mode == "decode" && room.host.empty())
    throw InvalidField("bootstrap_host",
                       "bootstrap_host is missing: want the host of the prefill worker");
  return room;
}

}  // namespace switchyard
