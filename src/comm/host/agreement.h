// What the nodes of one engine agree on before they start.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

// Flags and facts that have to be the same on every node, by name, in one order.
using Statement = std::vector<std::pair<std::string, std::string>>;
std::string EncodeStatement(const Statement& statement);
Statement DecodeStatement(std::string_view bytes);
// Error kInvalid that names the first entry in which `who`, e.g. "node 1 (10.0.0.2)", differs from
// node 0.
void CheckSame(const Statement& node0, const Statement& theirs, const std::string& who);

// Node 0's answer to all: what to do, or why not to.
std::string EncodeJob(std::string_view job);
std::string EncodeRefusal(std::string_view why);
std::string DecodeJob(std::string_view answer);  // the job; Error kInvalid with the refusal's words

}  // namespace switchyard
