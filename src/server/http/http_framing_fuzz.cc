// Fuzz target of the request parsers. For any input, the parsers must end with a request or a
// refusal, and must consume each byte once. The result must not depend on how the input is split.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <tuple>

#include "server/http/request_body.h"
#include "server/http/request_parser.h"

namespace {

using namespace switchyard::http;

struct Outcome {
  int status = 0;  // status of the refusal, 0 if none
  bool whole = false;
  size_t taken = 0;
  std::string target, body;
  auto operator<=>(const Outcome&) const = default;
};

// Parses `bytes` in pieces of at most `piece` bytes.
Outcome Read(std::string_view bytes, size_t piece) {
  Outcome out;
  RequestParser parser({.head_bytes = 4096, .fields = 50});
  while (out.taken < bytes.size() && !parser.done() && !parser.refusal())
    out.taken += parser.Take(bytes.substr(out.taken, piece));
  if (parser.refusal()) out.status = parser.refusal()->status;
  if (parser.refusal() || !parser.done()) return out;
  const RequestHead& head = parser.head();
  out.target = head.target;
  ParseTarget(head.target);
  ChunkDecoder chunks;
  BodyBuffer body(MemoryCharge(), head.chunked ? 65536 : head.length, 65536);
  const auto ended = [&] { return head.chunked ? chunks.done() : body.size() == head.length; };
  while (out.taken < bytes.size() && !ended()) {
    ChunkDecoder::Step step;
    std::string_view input = bytes.substr(out.taken, piece);
    if (head.chunked) {
      step = chunks.Next(input);
    } else {
      step.data = input.substr(0, head.length - body.size());
      step.consumed = step.data.size();
    }
    std::optional<Refusal> refusal = chunks.refusal();
    if (!refusal) refusal = body.Append(step.data);
    if (refusal) {
      out.status = refusal->status;
      return out;
    }
    out.taken += step.consumed;
  }
  out.whole = ended();
  out.body = body.bytes();
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Outcome whole = Read(bytes, size + 1), cut = Read(bytes, 1);
  // Only the number of bytes consumed before a refusal may depend on how the input is split.
  if (whole.status != 0) whole.taken = cut.taken = 0;
  if (whole != cut) std::abort();
  return 0;
}
