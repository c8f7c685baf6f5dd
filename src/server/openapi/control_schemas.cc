#include "server/openapi/schemas.h"

namespace switchyard::openapi {
namespace {

constexpr char kBool[] = R"({"type":"boolean"})";
constexpr char kName[] = R"({"type":"string","maxLength":128})";

constexpr char kFolder[] =
    R"re({"type":"string","pattern":"^(/.*)?$","description":"absolute; empty: )re"
    R"re(none"})re";

constexpr FieldSchema kPauseGeneration[] = {
    {"mode", R"({"enum":["abort","retract","in_place"],"default":"abort"})"}};

constexpr FieldSchema kSlowDown[] = {
    {"forward_sleep_time",
     R"({"type":"number","maximum":60,"description":"seconds before each step; null or at most )"
     R"(0: none"})"}};

constexpr FieldSchema kSetInternalState[] = {
    {"server_args", R"({"type":"object","additionalProperties":false,"properties":)"
                    R"({"max_running_requests":{"type":"integer","minimum":1},)"
                    R"("pp_max_micro_batch_size":{"type":"integer","minimum":1}}})"}};

constexpr FieldSchema kConfigureLogging[] = {
    {"log_requests", kBool},
    {"log_requests_level", R"({"type":"integer","minimum":0,"maximum":3})"},
    {"dump_requests_folder", kFolder},
    {"crash_dump_folder", kFolder},
    {"log_level", R"({"enum":["debug","info","warning","error"]})"},
};

constexpr FieldSchema kOpenSession[] = {
    {"capacity_of_str_len",
     R"({"type":"integer","minimum":0,"description":"without effect, as in SGLang"})"},
    {"session_id", kName},
    {"timeout", R"({"type":"number","exclusiveMinimum":0,"description":"seconds without a )"
                R"(request, after which the session closes"})"},
};

constexpr FieldSchema kCloseSession[] = {{"session_id", kName}};

constexpr FieldSchema kSessionParams[] = {
    {"id", kName},
    {"offset", R"({"type":"integer","minimum":0})"},
    {"replace", kBool},
    {"drop_previous_output", kBool},
};

}  // namespace

std::span<const FieldSchema> ControlFieldSchemas(RequestKind kind) {
  switch (kind) {
    case RequestKind::kPauseGeneration:
      return kPauseGeneration;
    case RequestKind::kSlowDown:
      return kSlowDown;
    case RequestKind::kSetInternalState:
      return kSetInternalState;
    case RequestKind::kConfigureLogging:
      return kConfigureLogging;
    case RequestKind::kOpenSession:
      return kOpenSession;
    case RequestKind::kCloseSession:
      return kCloseSession;
    case RequestKind::kSessionParams:
      return kSessionParams;
    default:
      return {};
  }
}

}  // namespace switchyard::openapi
