// Control requests of SGLang (managers/io_struct.py). All have the members of its BaseReq: rid and
// http_worker_ipc.
#include "server/api/known_fields.h"

namespace switchyard {
namespace {

using enum FieldUse;

constexpr KnownField kPauseGeneration[] = {
    {"mode", kHonoured}, {"rid", kHint}, {"http_worker_ipc", kHint}};

constexpr KnownField kContinueGeneration[] = {{"rid", kHint}, {"http_worker_ipc", kHint}};

constexpr KnownField kSlowDown[] = {
    {"forward_sleep_time", kHonoured}, {"rid", kHint}, {"http_worker_ipc", kHint}};

constexpr KnownField kSetInternalState[] = {
    {"server_args", kHonoured}, {"rid", kHint}, {"http_worker_ipc", kHint}};

constexpr KnownField kConfigureLogging[] = {
    {"log_requests", kHonoured},
    {"log_level", kHonoured},
    {"log_requests_level", kHonoured},
    {"log_requests_format", kRefused, "is not supported: log lines are text", R"(["text"])"},
    {"dump_requests_folder", kHonoured},
    {"dump_requests_threshold", kHint},  // each request is written when it ends
    {"dump_requests_exclude_meta_keys", kRefused, "is not supported: files have whole responses"},
    {"crash_dump_folder", kHonoured},
    {"rid", kHint},
    {"http_worker_ipc", kHint},
};

// capacity_of_str_len has no effect in SGLang either.
constexpr KnownField kOpenSession[] = {
    {"capacity_of_str_len", kHonoured},
    {"session_id", kHonoured},
    {"timeout", kHonoured},
    {"streaming", kRefused, "is not supported: a session keeps all its requests"},
    {"rid", kHint},
    {"http_worker_ipc", kHint},
};

constexpr KnownField kCloseSession[] = {
    {"session_id", kHonoured}, {"rid", kHint}, {"http_worker_ipc", kHint}};

// The object session_params of /generate.
constexpr KnownField kSessionParams[] = {{"id", kHonoured},
                                         {"rid", kHonoured},
                                         {"offset", kHonoured},
                                         {"replace", kHonoured},
                                         {"drop_previous_output", kHonoured}};

}  // namespace

std::span<const KnownField> KnownControlFields(RequestKind kind) {
  switch (kind) {
    case RequestKind::kPauseGeneration:
      return kPauseGeneration;
    case RequestKind::kContinueGeneration:
      return kContinueGeneration;
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

}  // namespace switchyard
