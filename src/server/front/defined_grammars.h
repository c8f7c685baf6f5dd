// Tracks which grammars the front has sent to the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

#include "engine/request.h"
#include "grammar/compiler.h"

namespace switchyard {

// Decides which grammar definitions are sent to the ranks before a request. Keeps the most recently
// used grammars on the ranks, up to a number and a size. Not thread-safe. The caller must hold one
// lock for Introduce and for sending the messages, so that the ranks receive them in the same
// order.
class DefinedGrammars {
 public:
  struct Limits {
    size_t count = 512;
    size_t bytes = size_t{512} << 20;  // limit of the sum of ReadyGrammar::bytes
  };
  DefinedGrammars() = default;
  explicit DefinedGrammars(Limits limits) : limits_(limits) {}

  // Appends the messages to send before a request with `grammar`. Grammars beyond the limits are
  // dropped on the ranks, the least recently used grammars first. Open requests keep the grammar
  // that they use.
  void Introduce(const ReadyGrammar& grammar, std::vector<ControlMessage>* messages);

 private:
  struct Defined {
    size_t bytes = 0;
    std::list<uint64_t>::iterator place;
  };

  Limits limits_;
  bool has_vocabulary_ = false;
  std::map<uint64_t, Defined> defined_;
  std::list<uint64_t> order_;  // least recently used first
  size_t bytes_ = 0;
};

}  // namespace switchyard
