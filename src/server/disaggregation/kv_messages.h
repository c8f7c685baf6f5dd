// Messages between a prefill and a decode worker, on one TCP connection for each pair of workers.
//
//   decode  -> prefill   KvHello                         after the handshake
//   prefill -> decode    KvWelcome                       a refusal, or consent
//   prefill -> decode    KvArena                         shm: where the caches are
//   decode  -> prefill   KvWant                          the request has pages
//   prefill -> decode    KvRowsHead, then the rows       tcp: a few MiB of one layer
//                        KvPlace                         shm: positions of layers that can be
//                        copied; or the slot of recurrent states
//   prefill -> decode    KvStateHead, then the state     tcp: the recurrent state of one layer
//   decode  -> prefill   KvTaken                         shm: what KvPlace names has been copied
//   decode  -> prefill   KvUnmapped                      shm: the caches cannot be mapped, so rows
//                                                        are sent as with tcp
//   prefill -> decode    KvDone                          all rows were sent; the first output
//   either direction     KvFailed                        the request ends
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "comm/host/agreement.h"
#include "core/error.h"
#include "server/front/kv_transfers.h"

namespace switchyard {

struct KvHello {
  std::string backend;    // shm or tcp
  std::string statement;  // EncodeStatement: what must be equal on both workers
};
struct KvWelcome {
  std::string refusal;  // empty: accepted
};
// The caches of the ranks are in memory that another process of the same user and host can map.
struct KvArena {
  int32_t process = 0, descriptor = 0;
  std::string job;     // EncodeRankSpec
  uint64_t arena = 0;  // a number, which each epoch of the ranks changes
};
struct KvWant {
  KvKey key;
  int64_t prompt_tokens = 0;
  int64_t begin = 0;  // the rows before it are cached
};
// KvLayerFormat::Bytes(end - begin) bytes follow, in the canonical order.
struct KvRowsHead {
  KvKey key;
  int64_t layer = 0, begin = 0, end = 0;
};
struct KvPlace {
  KvKey key;
  uint64_t version = 0;
  int32_t group = 0;
  int64_t begin = 0, end = 0;
  int64_t first_layer = 0, end_layer = 0;
  std::vector<int32_t> pages;  // of the positions [0, end)
  int32_t state = -1;          // not −1: the states in this slot, and no rows
  uint64_t arena = 0;          // KvArena::arena
};
// KvLayerFormat::StateBytes bytes follow, in the canonical order (CanonicalState): the state after
// the last token of the prompt.
struct KvStateHead {
  KvKey key;
  int64_t layer = 0;
};
struct KvTaken {
  KvKey key;
  uint64_t version = 0;  // of KvPlace
};
// The answer to the first KvPlace if the prefill worker's GPUs cannot be reached from those of the
// decode worker. Then the prefill worker sends no KvPlace until it has sent another KvArena.
struct KvUnmapped {
  KvKey key;
  uint64_t version = 0;  // of KvPlace
  uint64_t arena = 0;    // of KvPlace
  std::string why;
};
struct KvDone {
  KvKey key;
  std::string output;  // EncodeMessage of StepOutputs with one output
};
struct KvFailed {
  KvKey key;
  std::string error;
};
using KvMessage = std::variant<KvArena, KvWant, KvRowsHead, KvPlace, KvStateHead, KvTaken,
                               KvUnmapped, KvDone, KvFailed>;

std::string EncodeHello(const KvHello& hello);
KvHello DecodeHello(std::string_view bytes);
std::string EncodeWelcome(const KvWelcome& welcome);
KvWelcome DecodeWelcome(std::string_view bytes);
std::string EncodeKv(const KvMessage& message);
KvMessage DecodeKv(std::string_view bytes);  // Error kInvalid if malformed

}  // namespace switchyard
