// The interface between the front and the transfer of KV caches from or to another server.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "engine/request.h"

namespace switchyard {

// Identifies a request on the prefill and on the decode worker.
struct KvKey {
  uint64_t room = 0;  // bootstrap_room, chosen by the router
  int32_t index = 0;  // of the generation in its HTTP request
  auto operator<=>(const KvKey&) const = default;
  std::string Text() const;  // "room 17", "room 17.2"
};

// SGLang's fields bootstrap_host, bootstrap_port and bootstrap_room.
struct KvRoom {
  KvKey key;
  std::string host;  // of the prefill worker; used by the decode worker only
  int port = 0;
};

// Transfers the caches of requests that two servers compute. `role` is that of this server's
// requests. Members may be called from any thread, also while the front holds its locks; they do
// not call the front in return. They may wait for a copy of a few MiB.
class KvTransfers {
 public:
  virtual ~KvTransfers() = default;
  virtual KvRole role() const = 0;  // kExport or kImport
  // The request is about to be sent to the ranks.
  virtual void Open(uint64_t id, const KvRoom& room, int64_t prompt_tokens) = 0;
  // An output of the ranks for an open request. `group`: its attention group.
  virtual void OnOutput(uint64_t id, int group, const RequestOutput& output) = 0;
  // The request has ended, is about to be aborted, or its ranks have ended. From now on, its pages
  // are not written, and rows that are still read from them are not used. The other server gets
  // `why` as the error.
  virtual void Close(uint64_t id, const std::string& why) = 0;
  // The request was refused before it was opened.
  virtual void Refuse(const KvRoom& room, const std::string& why) = 0;
  // Time limits of requests do not run while the generation of this server is paused.
  virtual void SetPaused(bool paused) = 0;
};

}  // namespace switchyard
