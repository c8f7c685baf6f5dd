// A request to a prefill and a decode worker, made from a client's request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/json.h"
#include "server/http/http_server.h"

namespace switchyard::route {

// The bodies for the two workers. Both have SGLang's fields bootstrap_host, bootstrap_port and
// bootstrap_room. A request without a seed gets one, so that another pair of workers samples the
// same tokens.
class PairRequest {
 public:
  // nullopt: the request does not generate text, or its body is not a JSON object.
  static std::optional<PairRequest> Of(const http::Request& request, uint64_t seed);

  struct Bodies {
    std::string prefill, decode;
  };
  // `port`: of the prefill worker's bootstrap server; nullopt: the decode worker's default.
  // `attempt`: from 0. Later attempts have other names (rid), because a worker may still have the
  // request of an earlier one.
  Bodies For(const std::string& host, std::optional<int> port, uint64_t room, int attempt) const;
  bool generate() const { return generate_; }  // POST /generate

 private:
  nlohmann::ordered_json body_;
  bool generate_ = false;
};

}  // namespace switchyard::route
